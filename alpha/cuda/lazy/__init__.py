"""Arrays that are not elements yet, and what tensor cores read in the place of elements."""
