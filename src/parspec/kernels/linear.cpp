// Packing of weights, and a linear layer by itself.
#include <limits>
#include <vector>

#include "linear.hpp"

using namespace parspec;

namespace {

// One row as floats.
void widen(const void* w, int64_t row, int64_t k, int64_t format, float* out) {
  if (format == kFloat32) {
    std::copy_n(static_cast<const float*>(w) + row * k, k, out);
    return;
  }
  const uint16_t* from = static_cast<const uint16_t*>(w) + row * k;
  uint32_t* bits = reinterpret_cast<uint32_t*>(out);
  for (int64_t c = 0; c < k; ++c) bits[c] = static_cast<uint32_t>(from[c]) << 16;
}

}  // namespace

extern "C" {

// w [n, k] bfloat16 or float32 -> packed int8 and its scale [n], each output's largest weight at 127.
void parspec_pack_rounded(const void* w, int64_t n, int64_t k, int64_t format, int8_t* out, float* scale, int threads) {
  const int64_t blocks = (n + kLanes - 1) / kLanes, pairs = (k + 1) / 2;
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> numbers(k);
#pragma omp for
    for (int64_t b = 0; b < blocks; ++b)
      for (int64_t j = 0; j < kLanes; ++j) {
        const int64_t row = b * kLanes + j;
        int8_t* to = out + b * pairs * 2 * kLanes + 2 * j;
        if (row >= n) {
          for (int64_t c = 0; c < 2 * pairs; ++c) to[c / 2 * 2 * kLanes + c % 2] = 0;
          continue;
        }
        widen(w, row, k, format, numbers.data());
        float largest = 0.0f;
        for (int64_t c = 0; c < k; ++c) largest = std::max(largest, std::fabs(numbers[c]));
        scale[row] = std::max(largest, std::numeric_limits<float>::min()) / 127.0f;
        for (int64_t c = 0; c < k; ++c)
          to[c / 2 * 2 * kLanes + c % 2] = static_cast<int8_t>(std::nearbyint(numbers[c] / scale[row]));
        if (k % 2 != 0) to[k / 2 * 2 * kLanes + 1] = 0;
      }
  }
}

// w [n, k] -> int8 [n / 16][k / 2][16][2], bfloat16 [n / 16][k][8][2] (output j beside j + 8), float32 [n / 16][k][16];
// zeros where n or k end.
void parspec_pack(const void* w, int64_t n, int64_t k, int64_t format, void* out, int threads) {
  const int64_t blocks = (n + kLanes - 1) / kLanes, pairs = (k + 1) / 2;
#pragma omp parallel for num_threads(threads)
  for (int64_t b = 0; b < blocks; ++b)
    for (int64_t j = 0; j < kLanes; ++j) {
      const int64_t row = b * kLanes + j;
      const bool inside = row < n;
      if (format == kInt8) {
        const int8_t* from = static_cast<const int8_t*>(w) + row * k;
        int8_t* to = static_cast<int8_t*>(out) + b * pairs * 2 * kLanes + 2 * j;
        for (int64_t c = 0; c < 2 * pairs; ++c) to[c / 2 * 2 * kLanes + c % 2] = inside && c < k ? from[c] : int8_t{0};
      } else if (format == kBfloat16) {
        const uint16_t* from = static_cast<const uint16_t*>(w) + row * k;
        uint16_t* to = static_cast<uint16_t*>(out) + b * k * kLanes + j % 8 * 2 + j / 8;
        for (int64_t c = 0; c < k; ++c) to[c * kLanes] = inside ? from[c] : uint16_t{0};
      } else {
        const float* from = static_cast<const float*>(w) + row * k;
        float* to = static_cast<float*>(out) + b * k * kLanes + j;
        for (int64_t c = 0; c < k; ++c) to[c * kLanes] = inside ? from[c] : 0.0f;
      }
    }
}

// y [m, n] = x [m, k] * weight^T + bias.
void parspec_linear(const Linear* linear, const float* x, int64_t m, float* y, int threads) {
  Activations a(m, linear->k);
  a.tiles = Tiles(m);
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static)
    for (int64_t row = 0; row < m; ++row) a.put(x + row * linear->k, row, linear->k, linear->format);
    run_linear(*linear, a, y, linear->n, false, threads);
  }
}
}
