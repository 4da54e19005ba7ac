// The arithmetic of tensor cores: matrices as the unit sees them, and their products.
#pragma once
#include "emu_ptx.hpp"

namespace emu {
// An operand of a matrix instruction: elements as they are stored, and after decode() as sign, 11 bits and exponent.
struct Operand {
  std::vector<uint32_t> bits;
  std::vector<int> magnitude, sign, exponent;  // sign: 0 or -1, so that (x ^ sign) - sign has it
  std::vector<char> empty;  // for each row of A, or each eight columns of B: are all elements 0?
  bool finite = true, negated = false;
  explicit Operand(size_t n = 0) : bits(n), magnitude(n), sign(n), exponent(n) {}
};
// A is [row][k], B is [k][column].
void decode_a(Operand&, Format, bool negate);
void decode_b(Operand&, Format, int columns);
// c[0..8) += row `row` of A by columns column..column+7 of B.
void multiply_add(Format, const Operand& a, int row, const Operand& b, int column, int columns, int k, float* c);
}  // namespace emu
