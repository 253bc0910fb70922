// Linear layers for the few rows of a decoding step: float32 activations, weights in int8, bfloat16 or float32.
//
// A step reads every weight once, so weights are stored as small as they are and widened in registers. Outputs are
// computed in blocks of 16 that lie in memory in the order they are read; up to 6 rows share each pass over a block,
// because 6 x 2 accumulators, two weights and one activation are what 16 vector registers hold.
//
// int8: activations are rounded to 14 bits with one scale per row, which costs 1/16383 of the row's largest value,
// less than bfloat16 does. Products of int16 pairs are added exactly in int32.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>

namespace parspec {

constexpr int64_t kLanes = 16;     // outputs of a block
constexpr int64_t kMaxRows = 6;    // rows of a tile
constexpr int64_t kDepth = 2048;   // inputs added up in int32 before they become float
constexpr int64_t kLevels = 8191;  // largest quantised activation
constexpr int64_t kAhead = 1024;   // bytes prefetched ahead of the weights in use

static_assert(kLevels * 127 * kDepth < (int64_t{1} << 31), "int32 sums must not overflow");

enum Format : int64_t { kInt8 = 0, kBfloat16 = 1, kFloat32 = 2 };

// A packed weight [n, k]; the layouts are those pack() makes.
struct Linear {
  const void* weight;
  const float* scale;  // [n], int8 only
  const float* bias;   // [n] or null
  int64_t n, k, format;

  int64_t blocks() const { return (n + kLanes - 1) / kLanes; }
  int64_t pairs() const { return (k + 1) / 2; }
  int64_t block_bytes() const {
    return kLanes * (format == kInt8 ? 2 * pairs() : k * (format == kBfloat16 ? 2 : 4));
  }
};

// Rows dealt to tiles as evenly as possible: 8 rows run as 4 + 4.
struct Tiles {
  int64_t rows, count;
  explicit Tiles(int64_t m) : rows(m), count((m + kMaxRows - 1) / kMaxRows) {}
  int64_t start(int64_t tile) const { return rows * tile / count; }
  int64_t of(int64_t row) const {
    int64_t tile = row * count / rows;
    while (start(tile + 1) <= row) ++tile;
    while (start(tile) > row) --tile;
    return tile;
  }
};

template <typename T>
struct Buffer {
  T* data;
  explicit Buffer(int64_t count)
      : data(static_cast<T*>(std::aligned_alloc(64, (count * sizeof(T) + 63) / 64 * 64 + 64))) {
    if (data == nullptr) throw std::bad_alloc();
  }
  ~Buffer() { std::free(data); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
};

// sum + the products of neighbouring int16 pairs, exactly; one instruction where the processor has it.
inline __m256i add_products(__m256i sum, __m256i x, __m256i w) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
  return _mm256_dpwssd_epi32(sum, x, w);
#else
  return _mm256_add_epi32(sum, _mm256_madd_epi16(x, w));
#endif
}

// The body of a tile is written once per row with names instead of array indices: gcc keeps named accumulators in
// registers, and the empty asm stops it from moving all loads to the front, which would spill them.
#define PARSPEC_ROWS(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5)

template <int R>
inline void tile_int8(const int16_t* a, const int8_t* w, int64_t pairs, const float* row_scale, const float* scale,
                      float* out, bool first) {
#define DECLARE(r) __m256i sum##r##0 = _mm256_setzero_si256(), sum##r##1 = sum##r##0;
  PARSPEC_ROWS(DECLARE)
#undef DECLARE
  for (int64_t p = 0; p < pairs; ++p, w += 2 * kLanes, a += 2 * R) {
    _mm_prefetch(reinterpret_cast<const char*>(w) + kAhead, _MM_HINT_T0);
    const __m256i w0 = _mm256_cvtepi8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(w)));
    const __m256i w1 = _mm256_cvtepi8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(w + kLanes)));
#define STEP(r)                                          \
  if constexpr (R > r) {                                 \
    int32_t pair;                                        \
    std::memcpy(&pair, a + 2 * r, sizeof pair);          \
    const __m256i x = _mm256_set1_epi32(pair);           \
    sum##r##0 = add_products(sum##r##0, x, w0);          \
    sum##r##1 = add_products(sum##r##1, x, w1);          \
    asm volatile("" : "+x"(sum##r##0), "+x"(sum##r##1)); \
  }
    PARSPEC_ROWS(STEP)
#undef STEP
  }
  const auto finish = [&](int64_t r, int64_t half, __m256i sum) {
    float* o = out + kLanes * r + 8 * half;
    const __m256 factor = _mm256_mul_ps(_mm256_set1_ps(row_scale[r]), _mm256_loadu_ps(scale + 8 * half));
    const __m256 value = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), factor);
    _mm256_storeu_ps(o, first ? value : _mm256_add_ps(_mm256_loadu_ps(o), value));
  };
#define FINISH(r)            \
  if constexpr (R > r) {     \
    finish(r, 0, sum##r##0); \
    finish(r, 1, sum##r##1); \
  }
  PARSPEC_ROWS(FINISH)
#undef FINISH
}

struct Bfloat16Weights {
  using Type = uint16_t;
  static void load(const Type* w, __m256& w0, __m256& w1) {  // output j lies beside output j + 8
    const __m256i both = _mm256_load_si256(reinterpret_cast<const __m256i*>(w));
    w0 = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
    w1 = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(static_cast<int32_t>(0xffff0000u))));
  }
};

struct Float32Weights {
  using Type = float;
  static void load(const Type* w, __m256& w0, __m256& w1) {
    w0 = _mm256_load_ps(w);
    w1 = _mm256_load_ps(w + 8);
  }
};

template <int R, typename Weights>
inline void tile_float(const float* a, const typename Weights::Type* w, int64_t depth, float* out, bool first) {
#define DECLARE(r) __m256 sum##r##0 = _mm256_setzero_ps(), sum##r##1 = sum##r##0;
  PARSPEC_ROWS(DECLARE)
#undef DECLARE
  for (int64_t k = 0; k < depth; ++k, w += kLanes, a += R) {
    _mm_prefetch(reinterpret_cast<const char*>(w) + kAhead, _MM_HINT_T0);
    __m256 w0, w1;
    Weights::load(w, w0, w1);
#define STEP(r)                                          \
  if constexpr (R > r) {                                 \
    const __m256 x = _mm256_broadcast_ss(a + r);         \
    sum##r##0 = _mm256_fmadd_ps(x, w0, sum##r##0);       \
    sum##r##1 = _mm256_fmadd_ps(x, w1, sum##r##1);       \
    asm volatile("" : "+x"(sum##r##0), "+x"(sum##r##1)); \
  }
    PARSPEC_ROWS(STEP)
#undef STEP
  }
  const auto finish = [&](int64_t r, int64_t half, __m256 sum) {
    float* o = out + kLanes * r + 8 * half;
    _mm256_storeu_ps(o, first ? sum : _mm256_add_ps(_mm256_loadu_ps(o), sum));
  };
#define FINISH(r)            \
  if constexpr (R > r) {     \
    finish(r, 0, sum##r##0); \
    finish(r, 1, sum##r##1); \
  }
  PARSPEC_ROWS(FINISH)
#undef FINISH
}

template <typename F>
inline void with_rows(int64_t rows, F&& run) {
  switch (rows) {
    case 1: return run(std::integral_constant<int, 1>());
    case 2: return run(std::integral_constant<int, 2>());
    case 3: return run(std::integral_constant<int, 3>());
    case 4: return run(std::integral_constant<int, 4>());
    case 5: return run(std::integral_constant<int, 5>());
    default: return run(std::integral_constant<int, 6>());
  }
}

// The inputs of a pass over a weight, laid out tile by tile: a tile's rows side by side, for int8 in pairs of inputs.
struct Activations {
  Buffer<float> numbers;  // also holds the int16 form
  Buffer<float> row_scale;
  Tiles tiles{1};

  Activations(int64_t max_rows, int64_t max_k) : numbers(max_rows * (max_k + 1)), row_scale(max_rows) {}

  const int16_t* levels(int64_t start, int64_t pairs) const {
    return reinterpret_cast<const int16_t*>(numbers.data) + 2 * start * pairs;
  }

  // Lay one row out for weights of a format; x holds k inputs.
  void put(const float* x, int64_t row, int64_t k, int64_t format) {
    const int64_t tile = tiles.of(row), start = tiles.start(tile), rows = tiles.start(tile + 1) - start;
    if (format != kInt8) {
      float* out = numbers.data + start * k + row - start;
      for (int64_t i = 0; i < k; ++i) out[rows * i] = x[i];
      return;
    }
    const int64_t pairs = (k + 1) / 2;
    int32_t* out = reinterpret_cast<int32_t*>(numbers.data) + start * pairs + row - start;
    __m256 largest8 = _mm256_setzero_ps(), bad = _mm256_setzero_ps();
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    int64_t i = 0;
    for (; i + 8 <= k; i += 8) {
      const __m256 v = _mm256_loadu_ps(x + i);
      bad = _mm256_or_ps(bad, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
      largest8 = _mm256_max_ps(largest8, _mm256_and_ps(v, magnitude));
    }
    alignas(32) float lanes[8];
    _mm256_store_ps(lanes, largest8);
    float largest = *std::max_element(lanes, lanes + 8);
    bool broken = _mm256_movemask_ps(bad) != 0;
    for (; i < k; ++i) {
      broken |= std::isnan(x[i]);
      largest = std::max(largest, std::fabs(x[i]));
    }
    broken |= std::isinf(largest);
    // The smallest floats have no finite inverse; such a row is as good as zero.
    const float inverse = largest > 1e-30f && !broken ? static_cast<float>(kLevels) / largest : 0.0f;
    // NaN and infinity have no level; the row is marked, so that whoever looks at the logits sees it.
    row_scale.data[row] = broken ? NAN : largest / static_cast<float>(kLevels);
    const __m256 factor = _mm256_set1_ps(inverse);
    alignas(32) int32_t packed[4];
    int64_t p = 0;
    for (; 2 * p + 8 <= k; p += 4) {
      const __m256i level = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 2 * p), factor));
      const __m128i both = _mm_packs_epi32(_mm256_castsi256_si128(level), _mm256_extracti128_si256(level, 1));
      _mm_store_si128(reinterpret_cast<__m128i*>(packed), both);
      for (int64_t j = 0; j < 4; ++j) out[rows * (p + j)] = packed[j];
    }
    for (; p < pairs; ++p) {
      int16_t two[2] = {0, 0};
      for (int64_t j = 0; j < 2 && 2 * p + j < k; ++j)
        two[j] = static_cast<int16_t>(_mm_cvtss_si32(_mm_set_ss(x[2 * p + j] * inverse)));
      std::memcpy(out + rows * p, two, sizeof two);
    }
  }
};

// One tile's 16 outputs of block b, without the bias.
inline void block_outputs(const Linear& linear, const Activations& a, int64_t b, int64_t tile, float* out) {
  const int64_t start = a.tiles.start(tile), rows = a.tiles.start(tile + 1) - start;
  with_rows(rows, [&](auto constant) {
    constexpr int R = decltype(constant)::value;
    constexpr int64_t half = kDepth / 2;
    if (linear.format == kInt8) {
      const int64_t pairs = linear.pairs();
      const int16_t* x = a.levels(start, pairs);
      const int8_t* w = static_cast<const int8_t*>(linear.weight) + b * pairs * 2 * kLanes;
      alignas(32) float scale[kLanes] = {};
      std::copy_n(linear.scale + b * kLanes, std::min(kLanes, linear.n - b * kLanes), scale);
      for (int64_t p = 0; p < pairs; p += half)
        tile_int8<R>(x + 2 * p * R, w + 2 * p * kLanes, std::min(half, pairs - p), a.row_scale.data + start, scale, out,
                     p == 0);
    } else {
      const float* x = a.numbers.data + start * linear.k;
      const int64_t offset = b * linear.k * kLanes;
      for (int64_t d = 0; d < linear.k; d += half) {
        const int64_t depth = std::min(half, linear.k - d);
        if (linear.format == kBfloat16)
          tile_float<R, Bfloat16Weights>(x + d * R, static_cast<const uint16_t*>(linear.weight) + offset + d * kLanes,
                                         depth, out, d == 0);
        else
          tile_float<R, Float32Weights>(x + d * R, static_cast<const float*>(linear.weight) + offset + d * kLanes,
                                        depth, out, d == 0);
      }
    }
  });
}

// Blocks a thread takes at a time: enough bytes to be worth taking, few enough to balance a busy machine.
inline int64_t grain(const Linear& linear, int threads) {
  return std::max<int64_t>(1, std::min<int64_t>(linear.blocks() / (4 * threads), 65536 / linear.block_bytes()));
}

// y [m, stride] (+)= a * weight^T + bias, shared among the threads of the surrounding parallel region; no barrier
// at the end.
inline void run_linear(const Linear& linear, const Activations& a, float* y, int64_t stride, bool add, int threads) {
  const int64_t blocks = linear.blocks(), chunk = grain(linear, threads);
#pragma omp for schedule(dynamic, chunk) nowait
  for (int64_t b = 0; b < blocks; ++b) {
    alignas(32) float out[kMaxRows * kLanes];
    const int64_t column = b * kLanes, width = std::min(kLanes, linear.n - column);
    for (int64_t tile = 0; tile < a.tiles.count; ++tile) {
      block_outputs(linear, a, b, tile, out);
      const int64_t start = a.tiles.start(tile), end = a.tiles.start(tile + 1);
      for (int64_t row = start; row < end; ++row) {
        float* o = y + row * stride + column;
        const float* value = out + (row - start) * kLanes;
        for (int64_t j = 0; j < width; ++j)
          o[j] = (add ? o[j] : 0.0f) + value[j] + (linear.bias == nullptr ? 0.0f : linear.bias[column + j]);
      }
    }
  }
}

}  // namespace parspec
