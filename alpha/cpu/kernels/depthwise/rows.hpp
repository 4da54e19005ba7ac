// Depthwise convolution by sums of rows (rows.cpp), for filters of many taps.
#pragma once

#include "../conv.hpp"

constexpr int64_t ROW_TAPS = 8;  // of a row of filters; with fewer, what is done once a row takes longer than it saves

// Whether rows of filters have so many taps, and are read and written in steps of 1.
bool suits_rows(const Geometry& g, int64_t least_taps = ROW_TAPS);
void depthwise_rows(const Geometry& g, const Operands& op);
void depthwise_rows_wgrad(const Geometry& g, const float* x, const float* dy, float* dw);
