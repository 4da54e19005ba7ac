"""Arrays that are not elements yet, and what is known of arrays beside their elements: one interface for all.

A producer whose result may wait, or be written in another form:
    reserve, reserve_for   memory for it; the latter where what bounds the operands bounds the result
    defer                  the array, which is written when somebody reads it; companion_output: what is written with it
    can_wait               whether what the pass reads may be held until then
    chain                  the array of a pointwise op, which joins the pass of a reader of its kind (chained.py)
    offer                  a value for such readers, of an array that its producer writes otherwise
    flush_gradients        has passes run that should not hold memory for long
A reader, of any array:
    x.ptr                  float32 elements, written now if need be
    operand                what a tensor core reads: 16-bit planes and their scale
    as_stored              what one reads that takes float32: the array
    exact                  what a kernel reads where planes do not hold an operand
    split_view, planes_of  the planes that an array consists of, or else the array, or nothing
    kept_with              what is made of an array and kept with it
    write_for              has a pass run before memory is taken for what is made of it
    bound_of               a bound of the elements, known without reading them
    join                   has a pass write its planes within a larger array
    peek                   elements for a check, which changes nothing
    value_of, settle       what an array is to such a reader; and that outputs of a chain are written
    recipe                 how what is written was made, for a reader who has what it was made of
    is_inferring           tells whether a block of `inferring` is open
    form_of, progress, write_as, held, memory_key, inferring, undisturbed: as of alpha.core.device.Backend
    Packed, packed_form    an array that is kept in a smaller form as long as nobody reads its elements
    columns, rows_of       columns of a larger array, read where they are
    statistics.ask, take   means and variances of a result, counted by the kernel that writes it

Nobody else asks what class an array is, or reads `Array.derived`; tests/test_layering.py sees to that.
"""

from alpha.cuda.lazy import statistics
from alpha.cuda.lazy.chained import chain, offer, recipe, settle, value_of
from alpha.cuda.lazy.deferred import (
    GUARDED,
    PLANE_WRITERS,
    Memory,
    Rows,
    bound_of,
    can_wait,
    companion_output,
    defer,
    flush_gradients,
    join,
    peek,
    planes_are_read,
    planes_of,
    reserve,
    reserve_for,
    split_view,
    write_for,
)
from alpha.cuda.lazy.forms import Packed, columns, form_of, held, memory_key, packed_form, progress, rows_of, write_as
from alpha.cuda.lazy.operands import (
    EXACT_ARGS,
    KEEP,
    READS,
    UNFLAGGED,
    Operand,
    as_stored,
    exact,
    flag_counter,
    forget,
    kept_with,
    operand,
)
from alpha.cuda.lazy.quiet import inferring, is_inferring, undisturbed
