// One forward pass of a decoder of the Llama family (Llama, Mistral, Qwen2, Qwen3) over the tokens of several groups,
// in a single parallel region: between two reads of weights nothing happens but what the model asks for.
#include <vector>

#include "attention.hpp"
#include "linear.hpp"

using namespace parspec;

extern "C" {

struct Layer {
  const float* input_norm;      // [hidden]
  const float* attention_norm;  // [hidden], before the MLP
  const float* query_norm;      // [dim] or null
  const float* key_norm;        // [dim] or null
  Linear query, key, value, output, gate, up, down;
};

struct Decoder {
  int64_t num_layers, hidden, num_heads, num_key_heads, dim;
  float epsilon;  // of all norms
  const Layer* layers;
  const float* norm;  // [hidden]
  Linear head;
};

// One group's tokens; keys and values are float32, [2][layers][heads][capacity][dim] in the trunk and
// [2][layers][particles][heads][capacity][dim] in the branches.
struct Group {
  int64_t rows, num_new, num_logits, into_trunk, particles;
  float *trunk, *branches;
  int64_t trunk_length, trunk_capacity, branch_length, branch_capacity;
};
}

namespace {

constexpr int64_t kQueryTokens = 16;  // tokens whose queries share one pass over the keys

struct Token {
  int64_t group, row, t;
};

// A stretch of tokens of one group that attends as one task.
struct Stretch {
  int64_t group, begin, end;
};

void normalise(const float* x, const float* weight, int64_t n, float epsilon, float* out) {
  __m256 squares = _mm256_setzero_ps();
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) squares = _mm256_fmadd_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(x + i), squares);
  float total = sum8(squares);
  for (; i < n; ++i) total += x[i] * x[i];
  const float factor = 1.0f / std::sqrt(total / static_cast<float>(n) + epsilon);
  for (int64_t j = 0; j < n; ++j) out[j] = x[j] * factor * weight[j];
}

// Rotary position embedding, first half of the dimensions against the second (arXiv 2104.09864).
void rotate(const float* x, const float* cosine, const float* sine, int64_t dim, float scale, float* out) {
  const int64_t half = dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    out[i] = scale * (a * cosine[i] - b * sine[i]);
    out[i + half] = scale * (b * cosine[i + half] + a * sine[i + half]);
  }
}

// g <- g * sigmoid(g) * u for one block of outputs.
void silu_times(float* g, const float* u) {
  const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
  for (int64_t j = 0; j < kLanes; j += 8) {
    const __m256 x = _mm256_load_ps(g + j);
    const __m256 e = exp8(_mm256_or_ps(x, sign));  // exp(-|x|): cannot overflow
    const __m256 numerator = _mm256_blendv_ps(one, e, x);
    const __m256 sigmoid = _mm256_div_ps(numerator, _mm256_add_ps(one, e));
    _mm256_store_ps(g + j, _mm256_mul_ps(_mm256_mul_ps(x, sigmoid), _mm256_load_ps(u + j)));
  }
}

struct Cache {
  float *keys, *values;
};

Cache trunk_of(const Group& group, const Decoder& model, int64_t layer, int64_t head) {
  const int64_t size = group.trunk_capacity * model.dim;
  float* keys = group.trunk + (layer * model.num_key_heads + head) * size;
  return {keys, keys + model.num_layers * model.num_key_heads * size};
}

Cache branch_of(const Group& group, const Decoder& model, int64_t layer, int64_t row, int64_t head) {
  const int64_t size = group.branch_capacity * model.dim;
  float* keys = group.branches + ((layer * group.particles + row) * model.num_key_heads + head) * size;
  return {keys, keys + model.num_layers * group.particles * model.num_key_heads * size};
}

// Rotate a token's queries in place and put its key and value into the cache.
void place(const Decoder& model, const Layer& layer, int64_t index, const Group& group, const Token& token,
           const float* cosine, const float* sine, float* query, const float* key, const float* value) {
  const int64_t dim = model.dim;
  std::vector<float> normed(dim);
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  for (int64_t h = 0; h < model.num_heads; ++h) {
    float* q = query + h * dim;
    if (layer.query_norm != nullptr)
      normalise(q, layer.query_norm, dim, model.epsilon, normed.data());
    else
      std::copy_n(q, dim, normed.data());
    rotate(normed.data(), cosine, sine, dim, scale, q);
  }
  for (int64_t h = 0; h < model.num_key_heads; ++h) {
    const float* k = key + h * dim;
    if (layer.key_norm != nullptr) {
      normalise(k, layer.key_norm, dim, model.epsilon, normed.data());
      k = normed.data();
    }
    const Cache cache =
        group.into_trunk ? trunk_of(group, model, index, h) : branch_of(group, model, index, token.row, h);
    const int64_t position = (group.into_trunk ? group.trunk_length : group.branch_length) + token.t;
    rotate(k, cosine, sine, dim, 1.0f, cache.keys + position * dim);
    std::copy_n(value + h * dim, dim, cache.values + position * dim);
  }
}

// Attention of a stretch of tokens under one key head; reads queries [tokens, heads, dim], writes out likewise.
void attend(const Decoder& model, int64_t layer, const Group& group, int64_t first, const Stretch& stretch,
            int64_t head, const float* queries, float* out) {
  const int64_t dim = model.dim, repeats = model.num_heads / model.num_key_heads;
  const int64_t width = model.num_heads * dim;
  std::vector<Query> states;
  std::vector<int64_t> seen;
  states.reserve((stretch.end - stretch.begin) * repeats);
  for (int64_t i = stretch.begin; i < stretch.end; ++i)
    for (int64_t r = 0; r < repeats; ++r) {
      const int64_t offset = (first + i) * width + (head * repeats + r) * dim;
      std::fill_n(out + offset, dim, 0.0f);
      states.push_back({queries + offset, out + offset});
      seen.push_back(group.trunk_length + (group.into_trunk ? i % group.num_new + 1 : 0));
    }
  const Cache trunk = trunk_of(group, model, layer, head);
  see_keys(states.data(), seen.data(), states.size(), trunk.keys, trunk.values, dim);
  if (!group.into_trunk) {
    int64_t i = stretch.begin;
    while (i < stretch.end) {  // the tokens of one row after the other
      const int64_t row = i / group.num_new, end = std::min(stretch.end, (row + 1) * group.num_new);
      const int64_t offset = (i - stretch.begin) * repeats, count = (end - i) * repeats;
      for (int64_t j = 0; j < count; ++j)
        seen[j] = group.branch_length + (i + j / repeats) % group.num_new + 1;
      const Cache branch = branch_of(group, model, layer, row, head);
      see_keys(states.data() + offset, seen.data(), count, branch.keys, branch.values, dim);
      i = end;
    }
  }
  for (const Query& query : states)
    for (int64_t d = 0; d < dim; ++d) query.out[d] /= query.total;
}

}  // namespace

extern "C" {

// x [m, hidden] embeddings in, overwritten; cosine, sine [m, dim]; logits [wanted, head.n] out.
// Returns 0, or 1 if memory ran out.
int parspec_decode(const Decoder* decoder, const Group* groups, int64_t num_groups, float* x, const float* cosine,
                   const float* sine, float* logits, int threads) try {
  const Decoder& model = *decoder;
  const int64_t hidden = model.hidden, dim = model.dim;
  std::vector<Token> tokens;
  std::vector<Stretch> stretches;
  std::vector<int64_t> wanted, firsts;
  for (int64_t g = 0; g < num_groups; ++g) {
    const int64_t first = tokens.size(), count = groups[g].rows * groups[g].num_new;
    firsts.push_back(first);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t t = i % groups[g].num_new;
      tokens.push_back({g, i / groups[g].num_new, t});
      if (t >= groups[g].num_new - groups[g].num_logits) wanted.push_back(first + i);
    }
    // Enough stretches for all threads, each with enough queries to be worth reading the keys for.
    const int64_t shares = (2 * threads + model.num_key_heads - 1) / model.num_key_heads;
    const int64_t step = std::max<int64_t>(1, std::min(kQueryTokens, (count + shares - 1) / shares));
    for (int64_t i = 0; i < count; i += step) stretches.push_back({g, i, std::min(count, i + step)});
  }
  const int64_t m = tokens.size();
  const int64_t query_width = model.num_heads * dim, key_width = model.num_key_heads * dim;
  int64_t inner = 0;
  for (int64_t l = 0; l < model.num_layers; ++l) inner = std::max(inner, model.layers[l].up.n);
  Activations a(m, std::max({hidden, query_width, inner}));
  Buffer<float> query(m * query_width), key(m * key_width), value(m * key_width), attended(m * query_width);
  Buffer<float> product(m * inner);

#pragma omp parallel num_threads(threads)
  {
    std::vector<float> normed(hidden);
    for (int64_t l = 0; l < model.num_layers; ++l) {
      const Layer& layer = model.layers[l];
#pragma omp single
      a.tiles = Tiles(m);
#pragma omp for schedule(static)
      for (int64_t i = 0; i < m; ++i) {
        normalise(x + i * hidden, layer.input_norm, hidden, model.epsilon, normed.data());
        a.put(normed.data(), i, hidden, layer.query.format);
      }
      run_linear(layer.query, a, query.data, query_width, false, threads);
      run_linear(layer.key, a, key.data, key_width, false, threads);
      run_linear(layer.value, a, value.data, key_width, false, threads);
#pragma omp barrier
#pragma omp for schedule(static)
      for (int64_t i = 0; i < m; ++i)
        place(model, layer, l, groups[tokens[i].group], tokens[i], cosine + i * dim, sine + i * dim,
              query.data + i * query_width, key.data + i * key_width, value.data + i * key_width);
#pragma omp for schedule(dynamic) collapse(2)
      for (int64_t s = 0; s < static_cast<int64_t>(stretches.size()); ++s)
        for (int64_t h = 0; h < model.num_key_heads; ++h)
          attend(model, l, groups[stretches[s].group], firsts[stretches[s].group], stretches[s], h, query.data,
                 attended.data);
#pragma omp for schedule(static)
      for (int64_t i = 0; i < m; ++i) a.put(attended.data + i * query_width, i, query_width, layer.output.format);
      run_linear(layer.output, a, x, hidden, true, threads);
#pragma omp barrier
#pragma omp for schedule(static)
      for (int64_t i = 0; i < m; ++i) {
        normalise(x + i * hidden, layer.attention_norm, hidden, model.epsilon, normed.data());
        a.put(normed.data(), i, hidden, layer.gate.format);
      }
      const int64_t blocks = layer.gate.blocks(), chunk = grain(layer.gate, threads);
#pragma omp for schedule(dynamic, chunk)
      for (int64_t b = 0; b < blocks; ++b) {  // silu(gate) * up while both are at hand
        alignas(32) float gate[kMaxRows * kLanes], up[kMaxRows * kLanes];
        const int64_t column = b * kLanes, width = std::min(kLanes, layer.gate.n - column);
        for (int64_t tile = 0; tile < a.tiles.count; ++tile) {
          block_outputs(layer.gate, a, b, tile, gate);
          block_outputs(layer.up, a, b, tile, up);
          const int64_t start = a.tiles.start(tile), end = a.tiles.start(tile + 1);
          for (int64_t i = start; i < end; ++i) {
            float* g = gate + (i - start) * kLanes;
            float* u = up + (i - start) * kLanes;
            for (int64_t j = 0; j < width; ++j) {
              g[j] += layer.gate.bias == nullptr ? 0.0f : layer.gate.bias[column + j];
              u[j] += layer.up.bias == nullptr ? 0.0f : layer.up.bias[column + j];
            }
            silu_times(g, u);
            std::copy_n(g, width, product.data + i * inner + column);
          }
        }
      }
#pragma omp for schedule(static)
      for (int64_t i = 0; i < m; ++i) a.put(product.data + i * inner, i, layer.down.k, layer.down.format);
      run_linear(layer.down, a, x, hidden, true, threads);
#pragma omp barrier
    }
    if (!wanted.empty()) {
#pragma omp single
      a.tiles = Tiles(wanted.size());
#pragma omp for schedule(static)
      for (int64_t i = 0; i < static_cast<int64_t>(wanted.size()); ++i) {
        normalise(x + wanted[i] * hidden, model.norm, hidden, model.epsilon, normed.data());
        a.put(normed.data(), i, hidden, model.head.format);
      }
      run_linear(model.head, a, logits, model.head.n, false, threads);
    }
  }
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}
}
