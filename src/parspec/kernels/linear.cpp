// Packing of weights, and a linear layer by itself.
#include "linear.hpp"

using namespace parspec;

extern "C" {

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
