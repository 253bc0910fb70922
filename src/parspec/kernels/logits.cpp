// From logits to log-probabilities, the threshold of top-p, and draws, one row of a large vocabulary at a time.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "vector.hpp"

using namespace parspec;

namespace {

constexpr int64_t kStretch = 4096;  // numbers added in float before they go into a double

struct Largest {
  float value;
  bool nan;
};

Largest largest_of(const float* x, int64_t n) {
  __m256 most = _mm256_set1_ps(-std::numeric_limits<float>::infinity()), bad = _mm256_setzero_ps();
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 v = _mm256_loadu_ps(x + i);
    bad = _mm256_or_ps(bad, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    most = _mm256_max_ps(most, v);
  }
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes, most);
  Largest result{*std::max_element(lanes, lanes + 8), _mm256_movemask_ps(bad) != 0};
  for (; i < n; ++i) {
    result.nan |= std::isnan(x[i]);
    result.value = std::max(result.value, x[i]);
  }
  return result;
}

// The sum of exp((x - largest) * scale); the exponents go to out unless that is null.
double shifted_sum(const float* x, int64_t n, float largest, float scale, float* out) {
  double total = 0.0;
  for (int64_t start = 0; start < n; start += kStretch) {
    const int64_t end = std::min(n, start + kStretch);
    __m256 sum = _mm256_setzero_ps();
    int64_t i = start;
    for (; i + 8 <= end; i += 8) {
      const __m256 v = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(largest)), _mm256_set1_ps(scale));
      if (out != nullptr) _mm256_storeu_ps(out + i, v);
      sum = _mm256_add_ps(sum, exp8(v));
    }
    total += sum8(sum);
    for (; i < end; ++i) {
      const float v = (x[i] - largest) * scale;
      if (out != nullptr) out[i] = v;
      total += std::exp(v);
    }
  }
  return total;
}

// The first index whose cumulative probability exceeds u times the total, u in [0, 1).
int64_t draw(const float* log_probs, int64_t n, double u) {
  const int64_t stretches = (n + kStretch - 1) / kStretch;
  std::vector<double> sums(stretches);
  double total = 0.0;
  for (int64_t s = 0; s < stretches; ++s) {
    const int64_t start = s * kStretch;
    sums[s] = shifted_sum(log_probs + start, std::min(kStretch, n - start), 0.0f, 1.0f, nullptr);
    total += sums[s];
  }
  double left = u * total;
  int64_t stretch = 0;
  while (stretch + 1 < stretches && left >= sums[stretch]) left -= sums[stretch++];
  while (stretch > 0 && sums[stretch] == 0.0) --stretch;  // rounded past the last token of positive probability
  int64_t last = stretch * kStretch;
  for (int64_t i = last; i < std::min(n, (stretch + 1) * kStretch); ++i) {
    const float p = std::exp(log_probs[i]);
    if (p == 0.0f) continue;
    last = i;
    left -= p;
    if (left < 0.0) break;
  }
  return last;
}

// Floats in an order integers have: larger float, larger key.
inline uint32_t key_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

constexpr int kBuckets = 1 << 12, kShift = 32 - 12;

// The numbers of one bucket, largest first.
std::vector<float> bucket_of(const float* x, int64_t n, uint32_t bucket) {
  std::vector<float> found;
  for (int64_t i = 0; i < n; ++i)
    if (key_of(x[i]) >> kShift == bucket) found.push_back(x[i]);
  std::sort(found.begin(), found.end(), std::greater<float>());
  return found;
}

// The last of the most probable numbers that together reach a mass; the least of all if rounding keeps them short.
float nucleus_floor(const float* log_probs, int64_t n, double mass) {
  std::vector<double> masses(kBuckets, 0.0);
  alignas(32) float probs[8];
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm256_store_ps(probs, exp8(_mm256_loadu_ps(log_probs + i)));
    for (int64_t j = 0; j < 8; ++j) masses[key_of(log_probs[i + j]) >> kShift] += probs[j];
  }
  for (; i < n; ++i) masses[key_of(log_probs[i]) >> kShift] += std::exp(log_probs[i]);
  double above = 0.0;
  int bucket = kBuckets - 1;
  while (bucket >= 0 && above + masses[bucket] < mass) above += masses[bucket--];
  if (bucket < 0) return *std::min_element(log_probs, log_probs + n);
  const std::vector<float> found = bucket_of(log_probs, n, bucket);
  for (const float value : found) {
    above += std::exp(value);
    if (above >= mass) return value;
  }
  return found.back();
}

}  // namespace

extern "C" {

// out [rows, n] = log_softmax(x * scale), x [rows, n] with a stride; largest [rows] of x, NaN if there is one.
void parspec_log_softmax(const float* x, int64_t rows, int64_t n, int64_t stride, float scale, float* out,
                         float* largest, int threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = x + row * stride;
    float* to = out + row * n;
    const Largest found = largest_of(from, n);
    largest[row] = found.nan ? std::numeric_limits<float>::quiet_NaN() : found.value;
    const float log_total = static_cast<float>(std::log(shifted_sum(from, n, found.value, scale, to)));
    for (int64_t i = 0; i < n; ++i) to[i] -= log_total;
  }
}

// out [rows] = log_softmax(x * scale) at one token a row; x and largest as above.
void parspec_log_softmax_at(const float* x, int64_t rows, int64_t n, int64_t stride, float scale, const int64_t* tokens,
                            float* out, float* largest, int threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = x + row * stride;
    const Largest found = largest_of(from, n);
    largest[row] = found.nan ? std::numeric_limits<float>::quiet_NaN() : found.value;
    const double total = shifted_sum(from, n, found.value, scale, nullptr);
    out[row] = (from[tokens[row]] - found.value) * scale - static_cast<float>(std::log(total));
  }
}

// tokens [rows], one of each row of log-probabilities x [rows, n], by uniforms [rows].
void parspec_draw(const float* x, int64_t rows, int64_t n, int64_t stride, const double* uniforms, int64_t* tokens,
                  int threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (int64_t row = 0; row < rows; ++row) tokens[row] = draw(x + row * stride, n, uniforms[row]);
}

// out [rows]: of log-probabilities x [rows, n] the last of the nucleus of mass [rows].
void parspec_nucleus_floor(const float* x, int64_t rows, int64_t n, const float* mass, float* out, int threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (int64_t row = 0; row < rows; ++row) out[row] = nucleus_floor(x + row * n, n, mass[row]);
}
}
