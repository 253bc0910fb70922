// Softmax attention of a few queries over a key/value cache, tile by tile with a running maximum and sum
// (online softmax; arXiv 2205.14135, algorithm 1).
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "vector.hpp"

namespace parspec {

constexpr int64_t kKeys = 64;  // keys of a tile: their scores and the tile itself stay in the first cache levels

inline __m128 sum4x8(__m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256 ab = _mm256_hadd_ps(a, b), cd = _mm256_hadd_ps(c, d), all = _mm256_hadd_ps(ab, cd);
  return _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
}

// One query's state: the output so far, unnormalised, relative to the largest score seen.
struct Query {
  const float* q;  // [dim], scaled
  float* out;      // [dim]
  float largest = -std::numeric_limits<float>::infinity();
  float total = 0.0f;
};

// scores[i] = q . key_i for four keys at a time; one or two queries share the loads.
template <int Q>
inline void scores_of(const Query* queries, const float* keys, int64_t count, int64_t dim, float (*scores)[kKeys]) {
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    __m256 sum[Q][4];
    for (int j = 0; j < Q; ++j)
      for (int k = 0; k < 4; ++k) sum[j][k] = _mm256_setzero_ps();
    const float* key = keys + i * dim;
    for (int64_t d = 0; d < dim; d += 8) {
      __m256 k[4];
      for (int64_t c = 0; c < 4; ++c) k[c] = _mm256_loadu_ps(key + c * dim + d);
      for (int j = 0; j < Q; ++j) {
        const __m256 q = _mm256_loadu_ps(queries[j].q + d);
        for (int c = 0; c < 4; ++c) sum[j][c] = _mm256_fmadd_ps(q, k[c], sum[j][c]);
      }
    }
    for (int j = 0; j < Q; ++j) _mm_storeu_ps(scores[j] + i, sum4x8(sum[j][0], sum[j][1], sum[j][2], sum[j][3]));
  }
  for (; i < count; ++i)
    for (int j = 0; j < Q; ++j) {
      __m256 sum = _mm256_setzero_ps();
      for (int64_t d = 0; d < dim; d += 8)
        sum = _mm256_fmadd_ps(_mm256_loadu_ps(queries[j].q + d), _mm256_loadu_ps(keys + i * dim + d), sum);
      scores[j][i] = sum8(sum);
    }
}

// out += probabilities . values, 32 dimensions at a time; one or two queries share the loads.
template <int Q, int W>
inline void add_values(Query* queries, const float* values, int64_t count, int64_t dim, int64_t d,
                       const float (*probabilities)[kKeys]) {
  __m256 sum[Q][W];
  for (int j = 0; j < Q; ++j)
    for (int w = 0; w < W; ++w) sum[j][w] = _mm256_loadu_ps(queries[j].out + d + 8 * w);
  for (int64_t i = 0; i < count; ++i) {
    __m256 v[W];
    for (int w = 0; w < W; ++w) v[w] = _mm256_loadu_ps(values + i * dim + d + 8 * w);
    for (int j = 0; j < Q; ++j) {
      const __m256 p = _mm256_broadcast_ss(probabilities[j] + i);
      for (int w = 0; w < W; ++w) sum[j][w] = _mm256_fmadd_ps(p, v[w], sum[j][w]);
    }
  }
  for (int j = 0; j < Q; ++j)
    for (int w = 0; w < W; ++w) _mm256_storeu_ps(queries[j].out + d + 8 * w, sum[j][w]);
}

// Let Q queries see `count` <= kKeys more keys.
template <int Q>
inline void see_tile(Query* queries, const float* keys, const float* values, int64_t count, int64_t dim) {
  alignas(32) float scores[Q][kKeys];
  scores_of<Q>(queries, keys, count, dim, scores);
  for (int j = 0; j < Q; ++j) {
    Query& query = queries[j];
    float largest = query.largest;
    for (int64_t i = 0; i < count; ++i) largest = std::max(largest, scores[j][i]);
    for (int64_t i = count; i % 8 != 0; ++i) scores[j][i] = -std::numeric_limits<float>::infinity();
    const float shrink = std::isinf(query.largest) ? 0.0f : std::exp(query.largest - largest);
    __m256 total = _mm256_setzero_ps();
    for (int64_t i = 0; i < count; i += 8) {
      const __m256 p = exp8(_mm256_sub_ps(_mm256_load_ps(scores[j] + i), _mm256_set1_ps(largest)));
      _mm256_store_ps(scores[j] + i, p);
      total = _mm256_add_ps(total, p);
    }
    if (shrink != 1.0f)
      for (int64_t d = 0; d < dim; d += 8)
        _mm256_storeu_ps(query.out + d, _mm256_mul_ps(_mm256_loadu_ps(query.out + d), _mm256_set1_ps(shrink)));
    query.total = query.total * shrink + sum8(total);
    query.largest = largest;
  }
  int64_t d = 0;
  for (; d + 32 <= dim; d += 32) add_values<Q, 4>(queries, values, count, dim, d, scores);
  for (; d < dim; d += 8) add_values<Q, 1>(queries, values, count, dim, d, scores);
}

// Let queries see keys [0, seen[j]) of one stretch of memory; seen must not fall from one query to the next.
inline void see_keys(Query* queries, const int64_t* seen, int64_t num_queries, const float* keys, const float* values,
                     int64_t dim) {
  const int64_t most = num_queries == 0 ? 0 : seen[num_queries - 1];
  for (int64_t start = 0; start < most; start += kKeys) {
    int64_t j = 0;
    while (j < num_queries) {
      const int64_t count = std::min(kKeys, seen[j] - start);
      if (count <= 0) {
        ++j;
      } else if (j + 1 < num_queries && std::min(kKeys, seen[j + 1] - start) == count) {
        see_tile<2>(queries + j, keys + start * dim, values + start * dim, count, dim);
        j += 2;
      } else {
        see_tile<1>(queries + j, keys + start * dim, values + start * dim, count, dim);
        ++j;
      }
    }
  }
}

}  // namespace parspec
