// A T5 decoder's step of up to 8 rows in one kernel: a cluster of C blocks for each head,
// all of them on the card at once.
//
// Where time goes in a small network is not reading weights but waiting between stages, so
// - weights come by bulk copies into a ring in shared memory, far ahead of their use: they
//   wait for no activation. They lie in global memory in the order of their use (layout.py);
// - of a layer's eight products, five follow on one another inside a cluster, which has a
//   quick barrier. Three times a layer all clusters add what they computed to the residual
//   stream: each block writes its sums with a tag beside each (one 64-bit word), and those
//   who need a sum poll for its tag. No barrier of the grid is needed;
// - block r of a cluster keeps columns [r D/C, (r + 1) D/C) of the residual stream. Products
//   that follow a norm are split by inputs: norm(x) W = (x g) W / rms(x), so a block needs
//   its own columns alone, and C partial sums and sums of squares meet in shared memory;
// - tensor cores multiply 16 columns by 16 inputs by 8 rows: a row's sums have one order
//   whatever the other rows are.
//
// Shapes: R rows, D width, H heads, K head width (64), L layers, S slots, E inputs, V
// vocabulary, F hidden units of a cluster's share of the feed-forward layer.
#pragma once

#include "device.cuh"

namespace specdec {

#ifndef SPECDEC_STEP_THREADS
#define SPECDEC_STEP_THREADS 384
#endif
constexpr int kThreads = SPECDEC_STEP_THREADS;
constexpr int kWarps = kThreads / 32;
constexpr int kHead = 64;
constexpr int kMostRows = 8;
constexpr int kMostHeads = 16;
constexpr int kMostLayers = 24;
constexpr int kFragment = 512;  // Bytes of 16 columns by 16 inputs.
constexpr int kPerChunk = 32;   // Fragments that one bulk copy brings.
constexpr int kChunk = kFragment * kPerChunk;
constexpr int kState = kHead + 2;  // Attention's sums, their largest score and weight.
constexpr int kLogitTiles = 2;     // Tiles of 16 logits that a block computes at once.
// Words of the scratch memory: the number of the last exchange, the blocks that are done,
// the best logit and the next token of each row, and from kSums on two sets of sums.
constexpr int kEpoch = 0;
constexpr int kDone = 1;
constexpr int kBest = 8;
constexpr int kToken = 16;
constexpr int kSums = 32;

struct StepShape {
  int rows;
  int width;
  int heads;
  int layers;
  int hidden;     // F, a multiple of 16.
  int vocab;
  int slots;
  int inputs;
  int steps;      // Tokens that follow on one another, each the argmax of the last logits.
  int gated;      // 1: gelu(gate) times linear, as T5 1.1; 0: relu, as T5 1.0.
  int distances;  // Of the table of biases: larger ones have the last one's.
  int tiles;      // Tiles of logits of a block.
  int chunks;     // Chunks of weights of a block.
  int ring;       // Chunks in shared memory.
  float scale;    // Of the logits.
};

struct StepArrays {
  const int* tokens;           // [R]
  const int* index;            // [R], the slots of the first of these tokens.
  const bf16* weights;         // [H C, chunks, 8192]
  const bf16* embedding;       // [V, D]
  const bf16* norms;           // [3 L + 1, D]
  const float* biases;         // [H, distances]
  const unsigned char* mask;   // [R, E]
  uint64_t* scratch;           // [kSums + 2 H R D]
  int* chosen;                 // [steps, R]
  float* logits;               // [steps, R, V]
  bf16* features;              // [steps, R, D]
  bf16* keys[kMostLayers];     // [R, H, S, K]
  bf16* values[kMostLayers];
  const bf16* cross_keys[kMostLayers];  // [R, H, E, K]
  const bf16* cross_values[kMostLayers];
};

// bfloat16s from row to row, so that 4 rows' 8 bytes are in different banks.
__host__ __device__ __forceinline__ int stride_of(int n) {
  return (n + 63) / 64 * 64 + 16;
}

// Where things are in shared memory, in bytes.
struct StepLayout {
  int barriers;
  int biases;
  int x;
  int h;
  int middle;
  int partial;
  int squares;
  int partial_size;
  int qkv;
  int by_warp;
  int state;
  int by_group;
  int logits;
  int best;
  int bytes;

  __host__ __device__ StepLayout(const StepShape& s, int cluster) {
    const int part = s.width / cluster;
    const int middle_width = s.hidden > kHead ? s.hidden : kHead;
    const int columns = s.hidden * 2 > 3 * kHead ? s.hidden * 2 : 3 * kHead;
    int at = s.ring * kChunk;
    const auto take = [&at](int bytes) {
      const int here = at;
      at += (bytes + 15) / 16 * 16;
      return here;
    };
    partial_size = s.rows * columns;
    barriers = take(s.ring * 8);
    biases = take(s.distances * 4);
    x = take(s.rows * part * 4);
    h = take(s.rows * stride_of(s.width) * 2);
    middle = take(s.rows * stride_of(middle_width) * 2);
    partial = take(2 * partial_size * 4);
    squares = take(2 * kMostRows * 4);
    qkv = take(s.rows * 3 * kHead * 4);
    by_warp = take((s.rows > kWarps ? s.rows : kWarps) * kState * 4);
    state = take(s.rows * kState * 4);
    by_group = take(s.rows * part / 32 * 4);
    logits = take(2 * kWarps * 16 * s.rows * 4);
    best = take(kThreads / 16 * 8);
    bytes = at;
  }
};

// The ring of weights as its readers see it.
struct Ring {
  char* memory;
  uint64_t* barriers;
  int size;         // Fragments.
  int base = 0;     // Where the stage's first fragment is.
  unsigned lap = 0;

  // Where a stage's fragment is; `parity` becomes that of its copy.
  __device__ __forceinline__ int place(int fragment, unsigned& parity) const {
    const int at = base + fragment;
    parity = at < size ? lap : lap ^ 1;
    return at < size ? at : at - size;
  }
  // Waits for fragments [first, first + count), at most a chunk's number.
  __device__ __forceinline__ void wait(int first, int count) const {
    unsigned parity;
    const int from = place(first, parity) / kPerChunk;
    barrier_wait(barriers + from, parity);
    const int to = place(first + count - 1, parity) / kPerChunk;
    if (to != from) barrier_wait(barriers + to, parity);
  }
  __device__ __forceinline__ uint4 read(int fragment, int lane) const {
    unsigned parity;
    const int at = place(fragment, parity);
    return reinterpret_cast<const uint4*>(memory + at * kFragment)[lane];
  }
  __device__ __forceinline__ void advance(int fragments) {
    base += fragments;
    if (base >= size) {
      base -= size;
      lap ^= 1;
    }
  }
};

// The thread that fills the ring.
struct Filler {
  const char* source;  // The block's weights.
  int chunks;          // Of a step.
  int total;           // Of all steps.
  int slots;
  int issued = 0;
  int slot = 0;
  int chunk = 0;

  // Refills what is free when all threads have read so many fragments.
  __device__ __forceinline__ void fill(const Ring& ring, int used) {
    const int limit = min(total, used / kPerChunk + slots);
    while (issued < limit) {
      copy_bulk(ring.memory + slot * kChunk, source + size_t(chunk) * kChunk, kChunk,
                ring.barriers + slot);
      issued++;
      slot = slot + 1 == slots ? 0 : slot + 1;
      chunk = chunk + 1 == chunks ? 0 : chunk + 1;
    }
  }
};

// Fragments [at, at + count) by inputs of h from `k0` on: 16 columns by 8 rows.
__device__ __forceinline__ void multiply(const Ring& ring, int at, int count,
                                         const bf16* h, int stride, int k0, int rows,
                                         float (&c)[4]) {
  const int lane = threadIdx.x % 32;
  const int row = lane / 4;
  const bf16* mine = h + row * stride + k0 + lane % 4 * 4;
  ring.wait(at, count);
#pragma unroll 4
  for (int k = 0; k < count; k++) {
    const uint4 w = ring.read(at + k, lane);
    uint2 v = make_uint2(0, 0);
    if (row < rows) v = *reinterpret_cast<const uint2*>(mine + k * 16);
    const unsigned a[4] = {w.x, w.y, w.z, w.w};
    mma(c, a, v);
  }
}

// Calls put(column, row, sum) for what this lane holds of a tile.
template <class Put>
__device__ __forceinline__ void deliver(int tile, const float (&c)[4], int rows, Put put) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int column = tile * 16 + lane / 4 + i / 2 * 8;
    const int row = lane % 4 * 2 + i % 2;
    if (row < rows) put(column, row, c[i]);
  }
}

// Products of the stage's `tiles`, each of `count` fragments; one warp has a tile.
template <class Put>
__device__ __forceinline__ void products(const Ring& ring, int tiles, int count,
                                         const bf16* h, int stride, int rows, Put put) {
  for (int tile = threadIdx.x / 32; tile < tiles; tile += kWarps) {
    float c[4] = {0, 0, 0, 0};
    multiply(ring, tile * count, count, h, stride, 0, rows, c);
    deliver(tile, c, rows, put);
  }
}

// A head's keys of one row, of which block r sees r, r + C, r + 2 C ...
template <int C>
struct Keys {
  const bf16* keys;  // [n, K]
  const bf16* values;
  const unsigned char* mask;  // [n]; nullptr where the bias of distances is added.
  int rank;
  int count;     // n
  int position;  // The newest key's, which is in shared memory; -1: there is none.

  __device__ __forceinline__ bool is_cached(int j) const {
    return j < count && j != position;
  }
  __device__ __forceinline__ uint4 read(const bf16* from, int j, int lane) const {
    if (!is_cached(j)) return make_uint4(0, 0, 0, 0);
    return reinterpret_cast<const uint4*>(from + size_t(j) * kHead)[lane % 8];
  }
};

// Attention of one row over the keys i0, i0 + 1 .. of its block, 8 lanes a key. The first
// keys and values were read before. Leaves sums, largest score and weight in `state`.
template <int C>
__device__ __forceinline__ void attend(const Keys<C>& all, int first, int step,
                                       const uint4& first_key, const uint4& first_value,
                                       const float* qkv, const float* biases,
                                       int distances, float* state) {
  const int lane = threadIdx.x % 32;
  const int d0 = lane % 8 * 8;
  float largest = -1e30f;
  float weight = 0;
  float sums[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  for (int i0 = first; i0 * C + all.rank < all.count; i0 += step) {
    const int j = all.rank + C * (i0 + lane / 8);
    uint4 key = first_key;
    uint4 value = first_value;
    if (i0 != first) {
      key = all.read(all.keys, j, lane);
      value = all.read(all.values, j, lane);
    }
    if (j == all.position) {
      key = pack(qkv + kHead + d0);
      value = pack(qkv + 2 * kHead + d0);
    }
    float k[8];
    float v[8];
    unpack(key, k);
    unpack(value, v);
    float score = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) score = fmaf(k[i], qkv[d0 + i], score);
    score += __shfl_xor_sync(~0u, score, 1);
    score += __shfl_xor_sync(~0u, score, 2);
    score += __shfl_xor_sync(~0u, score, 4);
    const bool is_key = j < all.count;
    if (is_key && all.mask) score += all.mask[j] ? 0.f : -1e10f;
    if (is_key && !all.mask) score += biases[min(all.position - j, distances - 1)];
    const float top = is_key ? fmaxf(largest, score) : largest;
    const float shrink = __expf(largest - top);
    const float p = is_key ? __expf(score - top) : 0.f;
    weight = weight * shrink + p;
#pragma unroll
    for (int i = 0; i < 8; i++) sums[i] = fmaf(p, v[i], sums[i] * shrink);
    largest = top;
  }
  float top = fmaxf(largest, __shfl_xor_sync(~0u, largest, 8));
  top = fmaxf(top, __shfl_xor_sync(~0u, top, 16));
  const float shrink = __expf(largest - top);
  weight *= shrink;
  weight += __shfl_xor_sync(~0u, weight, 8);
  weight += __shfl_xor_sync(~0u, weight, 16);
#pragma unroll
  for (int i = 0; i < 8; i++) {
    sums[i] *= shrink;
    sums[i] += __shfl_xor_sync(~0u, sums[i], 8);
    sums[i] += __shfl_xor_sync(~0u, sums[i], 16);
  }
  if (lane < 8) {
#pragma unroll
    for (int i = 0; i < 8; i++) state[d0 + i] = sums[i];
  }
  if (lane == 0) {
    state[kHead] = top;
    state[kHead + 1] = weight;
  }
}

// Larger for a larger logit, then for a smaller id.
__device__ __forceinline__ unsigned long long order_of(float logit, int id) {
  const unsigned u = __float_as_uint(logit);
  const unsigned key = u & 0x80000000u ? ~u : u | 0x80000000u;
  return static_cast<unsigned long long>(key) << 32 | static_cast<unsigned>(~id);
}

template <int C>
__global__ void __launch_bounds__(kThreads, 1)
    step_kernel(const StepShape s, const __grid_constant__ StepArrays arrays) {
  DYNAMIC_SHARED(char, shared);
  const StepLayout at(s, C);
  const auto floats = [&](int offset) {
    return reinterpret_cast<float*>(shared + offset);
  };
  const auto halves = [&](int offset) {
    return reinterpret_cast<bf16*>(shared + offset);
  };
  const cg::cluster_group cluster = cg::this_cluster();
  const int tid = threadIdx.x;
  const int lane = tid % 32;
  const int warp = tid / 32;
  const int rank = cluster.block_rank();
  const int head = blockIdx.x / C;
  const int D = s.width;
  const int R = s.rows;
  const int part = D / C;  // Columns of the residual stream that this block keeps.
  const int c0 = rank * part;
  const int k_steps = part / 16;

  float* const biases = floats(at.biases);
  float* const x = floats(at.x);            // [R, part]
  bf16* const h = halves(at.h);             // [R, stride_of(part or D)]
  bf16* const middle = halves(at.middle);   // [R, stride_of(K or F)]
  float* const qkv = floats(at.qkv);        // [R, 3 K]
  float* const by_warp = floats(at.by_warp);
  float* const state = floats(at.state);    // [R, kState]
  float* const by_group = floats(at.by_group);
  const int h_stride = stride_of(part);
  const int wide_stride = stride_of(D);
  const int head_stride = stride_of(kHead);
  const int hidden_stride = stride_of(s.hidden);

  Ring ring;
  ring.memory = shared;
  ring.barriers = reinterpret_cast<uint64_t*>(shared + at.barriers);
  ring.size = s.ring * kPerChunk;
  Filler filler;
  filler.source =
      reinterpret_cast<const char*>(arrays.weights) + size_t(blockIdx.x) * s.chunks * kChunk;
  filler.chunks = s.chunks;
  filler.total = s.chunks * s.steps;
  filler.slots = s.ring;
  if (tid == 0) {
    for (int i = 0; i < s.ring; i++) barrier_init(ring.barriers + i);
    barrier_fence();
    filler.fill(ring, 0);
  }
  int used = 0;  // Fragments that all threads have read.
  const auto refill = [&](int fragments) {
    used += fragments;
    if (tid == 0) filler.fill(ring, used);
    ring.advance(fragments);
  };
  for (int i = tid; i < s.distances; i += kThreads)
    biases[i] = arrays.biases[head * s.distances + i];
  const unsigned epoch = static_cast<unsigned>(load_relaxed(arrays.scratch + kEpoch));
  unsigned exchanges = 0;  // Since the kernel began; the next one's tag is one more.
  unsigned stages = 0;     // Of partial sums in shared memory, of which two are kept.
  __syncthreads();

  // Where clusters put what they add to the residual stream: [H, R, D].
  const auto sums_at = [&](int of_head, int row, int column) {
    const size_t set = exchanges % 2;
    return arrays.scratch + kSums + ((set * s.heads + of_head) * R + row) * D + column;
  };
  const auto send = [&](int column, int row, float sum) {
    const uint64_t tag = epoch + exchanges + 1;
    store_relaxed(sums_at(head, row, c0 + column), tag << 32 | __float_as_uint(sum));
  };
  const auto received = [&](int row, int column) {
    uint64_t words[kMostHeads];
#pragma unroll
    for (int i = 0; i < kMostHeads; i++)
      if (i < s.heads) words[i] = load_relaxed(sums_at(i, row, c0 + column));
    float sum = 0;
    long long since = 0;
#pragma unroll
    for (int i = 0; i < kMostHeads; i++) {
      if (i < s.heads) {
        while (static_cast<unsigned>(words[i] >> 32) != epoch + exchanges + 1) {
          spin(since);
          words[i] = load_relaxed(sums_at(i, row, c0 + column));
        }
        sum += __uint_as_float(static_cast<unsigned>(words[i]));
      }
    }
    return sum;
  };
  const auto partials = [&] { return floats(at.partial) + stages % 2 * at.partial_size; };
  const auto squares = [&] { return floats(at.squares) + stages % 2 * kMostRows; };
  // Takes this block's columns of the residual stream, and prepares a product's inputs.
  const auto prepare = [&](bool is_first, int step, const bf16* scales) {
    for (int i = tid; i < R * part; i += kThreads) {
      const int row = i / part;
      const int column = i % part;
      // Read before the sums, which are waited for.
      const float scale = scales ? __bfloat162float(scales[c0 + column]) : 0.f;
      float v;
      if (is_first) {
        int token = arrays.tokens[row];
        if (step) {
          uint64_t word = load_relaxed(arrays.scratch + kToken + row);
          long long since = 0;
          while (static_cast<unsigned>(word >> 32) != epoch + exchanges) {
            spin(since);
            word = load_relaxed(arrays.scratch + kToken + row);
          }
          token = static_cast<int>(word);
        }
        token = min(max(token, 0), s.vocab - 1);
        v = __bfloat162float(arrays.embedding[size_t(token) * D + c0 + column]);
      } else {
        v = x[i] + received(row, column);
      }
      x[i] = v;
      if (scales) h[row * h_stride + column] = __float2bfloat16(v * scale);
      float square = v * v;
#pragma unroll
      for (int o = 16; o; o >>= 1) square += __shfl_xor_sync(~0u, square, o);
      if (lane == 0) by_group[i / 32] = square;
    }
    if (!is_first) exchanges++;
    __syncthreads();
    if (tid < R) {
      float sum = 0;
      for (int i = 0; i < part / 32; i++) sum += by_group[tid * (part / 32) + i];
      squares()[tid] = sum;
    }
  };
  const auto keep_partial = [&](int columns) {
    return [&, columns](int column, int row, float sum) {
      partials()[row * columns + column] = sum;
    };
  };
  // The C blocks' sums of a column, in one order.
  const auto pulled = [&](const float* of_block) {
    float v[C];
#pragma unroll
    for (int i = 0; i < C; i++)
      v[i] = *cluster.map_shared_rank(const_cast<float*>(of_block), i);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < C; i++) sum += v[i];
    return sum;
  };
  const auto inverse_rms = [&](int row) {
    return rsqrtf(pulled(squares() + row) / D + 1e-6f);
  };

  // Warps are divided among rows.
  const int per_row = max(1, kWarps / R);
  const auto rows_of_warp = [&](auto use) {
    for (int row = warp / per_row; row < R; row += kWarps / per_row) use(row);
  };
  // The part of attention that ends in `middle`; q is in qkv, and the first keys are read.
  const auto finish_attention = [&] {
    __syncthreads();
    for (int i = tid; i < R * kHead; i += kThreads) {
      const int row = i / kHead;
      const float* of_row = by_warp + row * per_row * kState;
      float top = of_row[kHead];
      for (int w = 1; w < per_row; w++) top = fmaxf(top, of_row[w * kState + kHead]);
      float sum = 0;
      float weight = 0;
      for (int w = 0; w < per_row; w++) {
        const float* one = of_row + w * kState;
        const float shrink = __expf(one[kHead] - top);
        sum += one[i % kHead] * shrink;
        weight += one[kHead + 1] * shrink;
      }
      state[row * kState + i % kHead] = sum;
      if (i % kHead == 0) {
        state[row * kState + kHead] = top;
        state[row * kState + kHead + 1] = weight;
      }
    }
    cluster.sync();
    for (int i = tid; i < R * kHead; i += kThreads) {
      const int row = i / kHead;
      float tops[C];
      float weights[C];
      float sums[C];
#pragma unroll
      for (int b = 0; b < C; b++) {
        const float* one = cluster.map_shared_rank(state, b) + row * kState;
        tops[b] = one[kHead];
        weights[b] = one[kHead + 1];
        sums[b] = one[i % kHead];
      }
      float top = tops[0];
#pragma unroll
      for (int b = 1; b < C; b++) top = fmaxf(top, tops[b]);
      float sum = 0;
      float weight = 0;
#pragma unroll
      for (int b = 0; b < C; b++) {
        const float shrink = __expf(tops[b] - top);
        sum += sums[b] * shrink;
        weight += weights[b] * shrink;
      }
      middle[row * head_stride + i % kHead] = __float2bfloat16(sum / weight);
    }
    __syncthreads();
  };

  for (int step = 0; step < s.steps; step++) {
    int waiting = 0;  // Fragments that were read, but maybe not by all threads yet.
    for (int l = 0; l < s.layers; l++) {
      // One loop for both attentions, so that their code is there once.
      for (int kind = 0; kind < 2; kind++) {
        const bool is_self = kind == 0;
        const int columns = is_self ? 3 * kHead : kHead;
        const int length = is_self ? s.slots : s.inputs;
        const auto keys_of = [&](int row) {
          const size_t offset = (size_t(row) * s.heads + head) * length * kHead;
          const int position = is_self ? arrays.index[row] + step : -1;
          Keys<C> all;
          all.keys = (is_self ? arrays.keys[l] : arrays.cross_keys[l]) + offset;
          all.values = (is_self ? arrays.values[l] : arrays.cross_values[l]) + offset;
          all.mask = is_self ? nullptr : arrays.mask + size_t(row) * s.inputs;
          all.rank = rank;
          all.count = is_self ? min(position + 1, s.slots) : s.inputs;
          all.position = position;
          return all;
        };
        // Known keys don't wait for this layer's query: those of the warp's first row.
        uint4 first_key = make_uint4(0, 0, 0, 0);
        uint4 first_value = make_uint4(0, 0, 0, 0);
        const int first = warp % per_row * 4;
        if (warp / per_row < R) {
          const auto all = keys_of(warp / per_row);
          const int j = rank + C * (first + lane / 8);
          first_key = all.read(all.keys, j, lane);
          first_value = all.read(all.values, j, lane);
        }
        prepare(is_self && l == 0, step, arrays.norms + size_t(3 * l + kind) * D);
        refill(waiting);
        products(ring, columns / 16, k_steps, h, h_stride, R, keep_partial(columns));
        cluster.sync();
        refill(columns / 16 * k_steps);
        for (int i = tid; i < R * columns; i += kThreads) {
          const int row = i / columns;
          const int column = i % columns;
          float v = pulled(partials() + i) * inverse_rms(row);
          if (column >= kHead) v = __bfloat162float(__float2bfloat16(v));
          qkv[row * 3 * kHead + column] = v;
        }
        stages++;
        __syncthreads();
        if (is_self) {
          for (int i = tid; i < R * kHead; i += kThreads) {
            const int row = i / kHead;
            const int slot = arrays.index[row] + step;
            if (slot % C != rank || slot >= s.slots) continue;
            const size_t to =
                ((size_t(row) * s.heads + head) * s.slots + slot) * kHead + i % kHead;
            const float* of_row = qkv + row * 3 * kHead + i % kHead;
            arrays.keys[l][to] = __float2bfloat16(of_row[kHead]);
            arrays.values[l][to] = __float2bfloat16(of_row[2 * kHead]);
          }
        }
        rows_of_warp([&](int row) {
          const auto all = keys_of(row);
          uint4 key = first_key;
          uint4 value = first_value;
          if (row != warp / per_row) {
            const int j = rank + C * (first + lane / 8);
            key = all.read(all.keys, j, lane);
            value = all.read(all.values, j, lane);
          }
          attend(all, first, per_row * 4, key, value, qkv + row * 3 * kHead, biases,
                 s.distances, by_warp + (row * per_row + warp % per_row) * kState);
        });
        finish_attention();
        products(ring, k_steps, kHead / 16, middle, head_stride, R, send);
        waiting = k_steps * (kHead / 16);
      }
      prepare(false, step, arrays.norms + size_t(3 * l + 2) * D);
      refill(waiting);
      const int hidden_columns = s.gated ? 2 * s.hidden : s.hidden;
      products(ring, hidden_columns / 16, k_steps, h, h_stride, R,
               keep_partial(hidden_columns));
      cluster.sync();
      refill(hidden_columns / 16 * k_steps);
      for (int i = tid; i < R * s.hidden; i += kThreads) {
        const int row = i / s.hidden;
        const float* of_row = partials() + row * hidden_columns + i % s.hidden;
        const float by = inverse_rms(row);
        float v = pulled(of_row) * by;
        if (s.gated) {
          v = gelu(v) * (pulled(of_row + s.hidden) * by);
        } else {
          v = fmaxf(v, 0.f);
        }
        middle[row * hidden_stride + i % s.hidden] = __float2bfloat16(v);
      }
      stages++;
      __syncthreads();
      products(ring, k_steps, s.hidden / 16, middle, hidden_stride, R, send);
      waiting = k_steps * (s.hidden / 16);
    }

    const bf16* const last_norm = arrays.norms + size_t(3 * s.layers) * D;
    prepare(false, step, nullptr);
    refill(waiting);
    cluster.sync();
    for (int i = tid; i < R * D; i += kThreads) {
      const int row = i / D;
      const int column = i % D;
      const float* of_block = cluster.map_shared_rank(x, column / part);
      const float v = of_block[row * part + column % part] * inverse_rms(row);
      const bf16 feature = __float2bfloat16(v * __bfloat162float(last_norm[column]));
      h[row * wide_stride + column] = feature;
      if (head == 0 && column / part == rank)
        arrays.features[(size_t(step) * R + row) * D + column] = feature;
    }
    stages++;
    __syncthreads();

    // Logits: all warps compute kLogitTiles tiles at a time, each a part of the inputs.
    unsigned long long best = 0;
    constexpr int kSplits = kWarps / kLogitTiles;
    const int all_steps = D / 16;
    const int from = all_steps * (warp % kSplits) / kSplits;
    const int to = all_steps * (warp % kSplits + 1) / kSplits;
    for (int t = 0; t < s.tiles; t += kLogitTiles) {
      float* const sums = floats(at.logits) + t / kLogitTiles % 2 * kWarps * 16 * R;
      const int tiles = min(kLogitTiles, s.tiles - t);
      const int tile = warp / kSplits;
      if (tile < tiles && to > from) {
        float c[4] = {0, 0, 0, 0};
        multiply(ring, tile * all_steps + from, to - from, h, wide_stride, from * 16, R, c);
        deliver(0, c, R, [&](int column, int row, float sum) {
          sums[(warp * R + row) * 16 + column] = sum;
        });
      }
      __syncthreads();
      refill(tiles * all_steps);
      for (int i = tid; i < tiles * R * 16; i += kThreads) {
        const int of_tile = i / (R * 16);
        const int row = i / 16 % R;
        float sum = 0;
#pragma unroll
        for (int w = 0; w < kSplits; w++) {
          const bool is_used = all_steps * (w + 1) / kSplits > all_steps * w / kSplits;
          if (is_used) sum += sums[((of_tile * kSplits + w) * R + row) * 16 + i % 16];
        }
        const int id = (blockIdx.x * s.tiles + t + of_tile) * 16 + i % 16;
        if (id < s.vocab) {
          sum *= s.scale;
          arrays.logits[(size_t(step) * R + row) * s.vocab + id] = sum;
          const unsigned long long order = order_of(sum, id);
          // This thread's items are all of one row: R * 16 divides kThreads, or there is
          // one item only.
          best = order > best ? order : best;
        }
      }
    }
    refill(s.chunks * kPerChunk * (step + 1) - used);  // To the last chunk's end.
    // 16 lanes have one row's best logits.
#pragma unroll
    for (int o = 8; o; o >>= 1) {
      const unsigned long long other = __shfl_xor_sync(~0u, best, o);
      best = other > best ? other : best;
    }
    unsigned long long* const bests =
        reinterpret_cast<unsigned long long*>(shared + at.best);
    if (tid % 16 == 0) bests[tid / 16] = best;
    __syncthreads();
    unsigned long long* const words =
        reinterpret_cast<unsigned long long*>(arrays.scratch);
    if (tid < R) {
      const int groups = min(kThreads / 16, kLogitTiles * R);
      unsigned long long top = 0;
      for (int i = tid; i < groups; i += R) top = max(top, bests[i]);
      atomicMax(words + kBest + tid, top);
      __threadfence();
    }
    __syncthreads();
    exchanges++;
    if (tid == 0 && atomicAdd(words + kDone, 1ull) == gridDim.x - 1) {
      __threadfence();
      store_relaxed(arrays.scratch + kDone, 0);
      const bool is_last = step + 1 == s.steps;
      for (int row = 0; row < R; row++) {
        const uint64_t top = load_relaxed(arrays.scratch + kBest + row);
        const unsigned token = ~static_cast<unsigned>(top);
        arrays.chosen[step * R + row] = static_cast<int>(token);
        store_relaxed(arrays.scratch + kBest + row, 0);
      }
      __threadfence();
      for (int row = 0; row < R && !is_last; row++) {
        const unsigned token = arrays.chosen[step * R + row];
        const uint64_t tag = epoch + exchanges;
        store_relaxed(arrays.scratch + kToken + row, tag << 32 | token);
      }
      if (is_last) store_relaxed(arrays.scratch + kEpoch, epoch + exchanges);
    }
  }
  // Others of the cluster may still read this block's shared memory.
  cluster.sync();
}

}  // namespace specdec
