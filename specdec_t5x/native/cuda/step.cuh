// A T5 decoder's step of up to 8 rows in one kernel: a cluster of C blocks for each head,
// all of them on the card at once.
//
// Where time goes in a small network is not reading weights but waiting between stages, so
// - weights come by bulk copies into a ring in shared memory, far ahead of their use: they
//   wait for no activation. They lie in global memory in the order of their use (layout.py);
// - of a layer's eight products, five follow on one another inside a cluster, which has a
//   quick barrier. If a row's keys are few, each block attends to all of them, and no
//   barrier follows attention. Three times a layer all clusters add what they computed to
//   the residual stream: each block writes its sums with a tag beside each (one 64-bit
//   word), and those who need a sum poll for its tag. No barrier of the grid is needed.
//   Blocks exchange their best logits in the same way, and each chooses the next step's
//   tokens by itself;
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
constexpr int kTurns = 3;       // Of a block's warps over keys that each block reads.
constexpr int kState = kHead + 2;  // Attention's sums, their largest score and weight.
constexpr int kLogitTiles = 2;     // Tiles of 16 logits that a block computes at once.
static_assert(kThreads >= 16 * kMostRows, "a tile's logits have a thread each");
// Words of the scratch memory: the number of the last exchange, from kSums on two sets of
// sums, and then each block's best logit of each row in two words.
constexpr int kEpoch = 0;
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
  int steps;      // Tokens that follow on one another, each chosen by the last logits.
  int gated;      // 1: gelu(gate) times linear, as T5 1.1; 0: relu, as T5 1.0.
  int distances;  // Of the table of biases: larger ones have the last one's.
  int tiles;      // Tiles of logits of a block.
  int chunks;     // Chunks of weights of a block.
  int ring;       // Chunks in shared memory.
  float scale;    // Of the logits.
  float temperature;  // Divides the logits before noise is added.
};

struct StepArrays {
  const int* tokens;           // [R]
  const int* index;            // [R], the slots of the first of these tokens.
  const bf16* weights;         // [H C, chunks, 8192]
  const bf16* embedding;       // [V, D]
  const bf16* norms;           // [3 L + 1, D]
  const float* biases;         // [H, distances]
  const unsigned char* mask;   // [R, E]
  const float* noise;          // [steps, R, V]; nullptr: a token is the logits' argmax.
  uint64_t* scratch;           // [kSums + 2 H R D + 2 R H C]
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

// Blocks of a cluster that divide a row's keys among them; 1: each block reads all keys.
__host__ __device__ __forceinline__ int readers_of(int rows, int keys, int cluster) {
  const int at_once = rows < kWarps ? kWarps / rows * 4 : 4;
  return keys <= kTurns * at_once ? 1 : cluster;
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
  int positions;
  int mask;
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
    positions = take(s.rows * 4);
    const int readers = readers_of(s.rows, s.inputs, cluster);
    mask = take(s.rows * ((s.inputs + readers - 1) / readers));
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
#pragma unroll 1
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
#pragma unroll 2
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

// Products of the stage's `tiles`, each of `count` fragments; one warp has a tile. In a stage
// that needs more than half of the ring, release(fragments) is called between.
template <class Put, class Release>
__device__ __forceinline__ int products(const Ring& ring, int tiles, int count,
                                        const bf16* h, int stride, int rows, Put put,
                                        Release release) {
  int released = 0;  // Tiles.
  const bool is_large = 2 * tiles * count > ring.size;
#pragma unroll 1
  for (int first = 0; first < tiles; first += kWarps) {
    const int tile = first + threadIdx.x / 32;
    if (tile < tiles) {
      float c[4] = {0, 0, 0, 0};
      multiply(ring, (tile - released) * count, count, h, stride, 0, rows, c);
      deliver(tile, c, rows, put);
    }
    if (is_large && first + kWarps < tiles) {
      __syncthreads();
      release(kWarps * count);
      released += kWarps;
    }
  }
  return (tiles - released) * count;
}

// A head's keys of one row, of which the block sees first, first + readers ...
struct Keys {
  const bf16* keys;  // [n, K]
  const bf16* values;
  const unsigned char* mask;  // Of the block's keys; nullptr: distances have a bias.
  int first;
  int readers;
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
__device__ __forceinline__ void attend(const Keys& all, int first, int step,
                                       const uint4& first_key, const uint4& first_value,
                                       const float* qkv, const float* biases,
                                       int distances, float* state) {
  const int lane = threadIdx.x % 32;
  const int d0 = lane % 8 * 8;
  float largest = -1e30f;
  float weight = 0;
  float sums[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll 1
  for (int i0 = first; all.first + all.readers * i0 < all.count; i0 += step) {
    const int i = i0 + lane / 8;
    const int j = all.first + all.readers * i;
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
    if (is_key && all.mask) score += all.mask[i] ? 0.f : -1e10f;
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

// Larger for a larger value, then for a smaller id. NaN and infinity are larger than all
// numbers, and their id is -1, which is no token.
__device__ __forceinline__ unsigned long long order_of(float value, int id) {
  if (!(value < INFINITY)) return 0xffffffffull << 32;
  const unsigned u = __float_as_uint(value);
  const unsigned key = u & 0x80000000u ? ~u : u | 0x80000000u;
  return static_cast<unsigned long long>(key) << 32 | static_cast<unsigned>(~id);
}

template <int C>
__global__ void __launch_bounds__(kThreads, 1)
    step_kernel(const StepShape s, const __grid_constant__ StepArrays arrays) {
  DYNAMIC_SHARED(char, shared);
  const StepLayout at(s, C);
  const auto floats = [&](int offset) { return reinterpret_cast<float*>(shared + offset); };
  const auto halves = [&](int offset) { return reinterpret_cast<bf16*>(shared + offset); };
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
  const int groups = part / 32;
  const int k_steps = part / 16;

  float* const biases = floats(at.biases);
  float* const x = floats(at.x);           // [R, part]
  bf16* const h = halves(at.h);            // [R, stride_of(part or D)]
  bf16* const middle = halves(at.middle);  // [R, stride_of(K or F)]
  float* const qkv = floats(at.qkv);       // [R, 3 K]
  float* const by_warp = floats(at.by_warp);
  float* const state = floats(at.state);   // [R, kState]
  float* const by_group = floats(at.by_group);
  int* const positions = reinterpret_cast<int*>(shared + at.positions);
  unsigned char* const mask = reinterpret_cast<unsigned char*>(shared + at.mask);
  const int input_readers = readers_of(R, s.inputs, C);
  const int slot_readers = readers_of(R, s.slots, C);
  const int mask_size = (s.inputs + input_readers - 1) / input_readers;
  const int h_stride = stride_of(part);
  const int wide_stride = stride_of(D);

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
#pragma unroll 1
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
#pragma unroll 1
  for (int i = tid; i < s.distances; i += kThreads)
    biases[i] = arrays.biases[head * s.distances + i];
  if (tid < R) positions[tid] = arrays.index[tid];
#pragma unroll 1
  for (int row = 0; row < R; row++) {
#pragma unroll 1
    for (int i = tid; i < mask_size; i += kThreads) {
      const int j = rank % input_readers + input_readers * i;
      if (j < s.inputs) mask[row * mask_size + i] = arrays.mask[size_t(row) * s.inputs + j];
    }
  }
  const unsigned epoch = static_cast<unsigned>(load_relaxed(arrays.scratch + kEpoch));
  unsigned exchanges = 0;  // Since the kernel began; the next one's tag is one more.
  unsigned stages = 0;     // Of partial sums in shared memory, of which two are kept.
  __syncthreads();

  // Where clusters put what they add to the residual stream: [H, R, D].
  const auto sums_at = [&](int row, int column) {
    const size_t set = exchanges % 2;
    return arrays.scratch + kSums + (set * s.heads * R + row) * D + c0 + column;
  };
  const size_t between_heads = size_t(R) * D;
  const auto send = [&](int column, int row, float sum) {
    const uint64_t tag = epoch + exchanges + 1;
    uint64_t* const to = sums_at(row, column) + head * between_heads;
    store_relaxed(to, tag << 32 | __float_as_uint(sum));
  };
  const auto received = [&](int row, int column) {
    const unsigned tag = epoch + exchanges + 1;
    const uint64_t* const from = sums_at(row, column);
    uint64_t words[kMostHeads];
    long long since = 0;
    bool is_there = false;
    while (!is_there) {
#pragma unroll
      for (int i = 0; i < kMostHeads; i++)
        if (i < s.heads) words[i] = load_relaxed(from + i * between_heads);
      is_there = true;
#pragma unroll
      for (int i = 0; i < kMostHeads; i++)
        is_there &= i >= s.heads || static_cast<unsigned>(words[i] >> 32) == tag;
      if (!is_there) spin(since);
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kMostHeads; i++)
      if (i < s.heads) sum += __uint_as_float(static_cast<unsigned>(words[i]));
    return sum;
  };
  // Where blocks put their best logits of a row.
  const auto bests_of = [&](int row, int block) {
    const size_t sums = size_t(2) * s.heads * R * D;
    return arrays.scratch + kSums + sums + (size_t(row) * gridDim.x + block) * 2;
  };
  // The token that a row's last step chose. Called by whole warps.
  const auto chosen = [&](int row) {
    unsigned long long best = 0;
#pragma unroll 1
    for (int block = lane; block < gridDim.x; block += 32) {
      const uint64_t* const from = bests_of(row, block);
      unsigned halves[2];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        uint64_t word = load_relaxed(from + i);
        long long since = 0;
        while (static_cast<unsigned>(word >> 32) != epoch + exchanges) {
          spin(since);
          word = load_relaxed(from + i);
        }
        halves[i] = static_cast<unsigned>(word);
      }
      const auto order = static_cast<unsigned long long>(halves[0]) << 32 | halves[1];
      best = order > best ? order : best;
    }
#pragma unroll
    for (int o = 16; o; o >>= 1) {
      const unsigned long long other = __shfl_xor_sync(~0u, best, o);
      best = other > best ? other : best;
    }
    return static_cast<int>(~static_cast<unsigned>(best));
  };
  const auto partials = [&] { return floats(at.partial) + stages % 2 * at.partial_size; };
  const auto squares = [&] { return floats(at.squares) + stages % 2 * kMostRows; };
  // The C blocks' sums of a column, in one order.
  const auto pulled = [&](float* of_block) {
    float v[C];
#pragma unroll
    for (int i = 0; i < C; i++) v[i] = *cluster.map_shared_rank(of_block, i);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < C; i++) sum += v[i];
    return sum;
  };
  // Called by whole warps.
  const auto inverse_rms = [&](int row) {
    float square = 0;
    if (lane < C) square = *cluster.map_shared_rank(squares() + row, lane);
#pragma unroll
    for (int o = 16; o; o >>= 1) square += __shfl_xor_sync(~0u, square, o);
    return rsqrtf(square / D + 1e-6f);
  };

  // Warps are divided among rows.
  const int per_row = max(1, kWarps / R);
  const int rows_at_once = kWarps / per_row;
  const int row_of_warp = warp / per_row;
  const int first_key_of_warp = warp % per_row * 4;

  for (int step = 0; step < s.steps; step++) {
    int waiting = 0;  // Fragments that were read, but maybe not by all threads yet.
    int l = 0;
    int kind = 0;  // 0 self-attention, 1 cross-attention, 2 feed-forward.
    // One loop for all of them, and once more for the last norm: the code has to stay in
    // the multiprocessor's cache of instructions.
#pragma unroll 1
    for (int stage = 0; stage <= 3 * s.layers; stage++) {
      const bool is_last = stage == 3 * s.layers;
      const bool is_attention = kind < 2 && !is_last;
      const int readers = kind == 0 ? slot_readers : input_readers;
      const auto keys_of = [&](int row) {
        const bool is_self = kind == 0;
        const int length = is_self ? s.slots : s.inputs;
        const size_t offset = (size_t(row) * s.heads + head) * length * kHead;
        Keys all;
        all.keys = (is_self ? arrays.keys[l] : arrays.cross_keys[l]) + offset;
        all.values = (is_self ? arrays.values[l] : arrays.cross_values[l]) + offset;
        all.mask = is_self ? nullptr : mask + row * mask_size;
        all.first = rank % readers;
        all.readers = readers;
        all.position = is_self ? positions[row] + step : -1;
        all.count = is_self ? min(all.position + 1, s.slots) : s.inputs;
        return all;
      };
      // Known keys don't wait for this layer's query: those of the warp's first row.
      uint4 first_key = make_uint4(0, 0, 0, 0);
      uint4 first_value = make_uint4(0, 0, 0, 0);
      const int first_j = rank % readers + readers * (first_key_of_warp + lane / 8);
      if (is_attention && row_of_warp < R) {
        const auto all = keys_of(row_of_warp);
        first_key = all.read(all.keys, first_j, lane);
        first_value = all.read(all.values, first_j, lane);
      }

      // This block's columns of the residual stream, and a product's inputs.
      const bf16* const scales = arrays.norms + size_t(stage) * D + c0;
#pragma unroll 1
      for (int unit = warp; unit < R * groups; unit += kWarps) {
        const int row = unit / groups;
        const int column = unit % groups * 32 + lane;
        // Read before the sums, which are waited for.
        const float scale = __bfloat162float(scales[column]);
        float v;
        if (stage == 0) {
          int token = step ? chosen(row) : arrays.tokens[row];
          if (step && blockIdx.x == 0 && column == 0)
            arrays.chosen[(step - 1) * R + row] = token;
          token = min(max(token, 0), s.vocab - 1);
          v = __bfloat162float(arrays.embedding[size_t(token) * D + c0 + column]);
        } else {
          v = x[row * part + column] + received(row, column);
        }
        x[row * part + column] = v;
        h[row * h_stride + column] = __float2bfloat16(v * scale);
        float square = v * v;
#pragma unroll
        for (int o = 16; o; o >>= 1) square += __shfl_xor_sync(~0u, square, o);
        if (lane == 0) by_group[unit] = square;
      }
      if (stage) exchanges++;
      __syncthreads();
      if (tid < R) {
        float sum = 0;
#pragma unroll 1
        for (int i = 0; i < groups; i++) sum += by_group[tid * groups + i];
        squares()[tid] = sum;
      }
      refill(waiting);
      if (is_last) break;

      const int hidden_columns = s.gated ? 2 * s.hidden : s.hidden;
      const int columns = kind == 0 ? 3 * kHead : kind == 1 ? kHead : hidden_columns;
      float* const kept = partials();
      const auto keep = [&](int column, int row, float sum) {
        kept[row * columns + column] = sum;
      };
      waiting = products(ring, columns / 16, k_steps, h, h_stride, R, keep, refill);
      sync_cluster_shared();
      refill(waiting);
      const int results = is_attention ? columns : s.hidden;
      const int stride = stride_of(is_attention ? kHead : s.hidden);
      const int units_of_row = (results + 31) / 32;
#pragma unroll 1
      for (int unit = warp; unit < R * units_of_row; unit += kWarps) {
        const int row = unit / units_of_row;
        const int column = unit % units_of_row * 32 + lane;
        const float by = inverse_rms(row);
        if (column >= results) continue;
        float v = pulled(kept + row * columns + column) * by;
        if (is_attention) {
          if (column >= kHead) v = __bfloat162float(__float2bfloat16(v));
          qkv[row * 3 * kHead + column] = v;
        } else {
          if (s.gated) {
            v = gelu(v) * (pulled(kept + row * columns + s.hidden + column) * by);
          } else {
            v = fmaxf(v, 0.f);
          }
          middle[row * stride + column] = __float2bfloat16(v);
        }
      }
      stages++;
      __syncthreads();

      if (is_attention) {
        if (kind == 0) {
#pragma unroll 1
          for (int i = tid; i < R * kHead; i += kThreads) {
            const int row = i / kHead;
            const int slot = positions[row] + step;
            // A block writes all keys that it reads, so it reads its own writes.
            if (slot % readers != rank % readers || slot >= s.slots) continue;
            const size_t to =
                ((size_t(row) * s.heads + head) * s.slots + slot) * kHead + i % kHead;
            const float* of_row = qkv + row * 3 * kHead + i % kHead;
            arrays.keys[l][to] = __float2bfloat16(of_row[kHead]);
            arrays.values[l][to] = __float2bfloat16(of_row[2 * kHead]);
          }
        }
#pragma unroll 1
        for (int row = row_of_warp; row < R; row += rows_at_once) {
          const auto all = keys_of(row);
          if (row != row_of_warp) {
            first_key = all.read(all.keys, first_j, lane);
            first_value = all.read(all.values, first_j, lane);
          }
          attend(all, first_key_of_warp, per_row * 4, first_key, first_value,
                 qkv + row * 3 * kHead, biases, s.distances,
                 by_warp + (row * per_row + warp % per_row) * kState);
        }
        __syncthreads();
        // The warps' sums of a row, of those warps that have keys.
#pragma unroll 1
        for (int i = tid; i < R * kHead; i += kThreads) {
          const int row = i / kHead;
          const int count = kind == 0 ? min(positions[row] + step + 1, s.slots) : s.inputs;
          const int keys = (count - rank % readers + readers - 1) / readers;
          const int warps = min(per_row, (keys + 3) / 4);
          const float* of_row = by_warp + row * per_row * kState;
          float top = of_row[kHead];
#pragma unroll 1
          for (int w = 1; w < warps; w++) top = fmaxf(top, of_row[w * kState + kHead]);
          float sum = 0;
          float weight = 0;
#pragma unroll 1
          for (int w = 0; w < warps; w++) {
            const float* one = of_row + w * kState;
            const float shrink = __expf(one[kHead] - top);
            sum += one[i % kHead] * shrink;
            weight += one[kHead + 1] * shrink;
          }
          if (readers == 1) {
            middle[row * stride + i % kHead] = __float2bfloat16(sum / weight);
            continue;
          }
          // A block may have no key at all.
          state[row * kState + i % kHead] = warps > 0 ? sum : 0.f;
          if (i % kHead == 0) {
            state[row * kState + kHead] = warps > 0 ? top : -1e30f;
            state[row * kState + kHead + 1] = warps > 0 ? weight : 0.f;
          }
        }
        if (readers > 1) sync_cluster_shared();
#pragma unroll 1
        for (int i = tid; readers > 1 && i < R * kHead; i += kThreads) {
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
          middle[row * stride + i % kHead] = __float2bfloat16(sum / weight);
        }
        __syncthreads();
      }
      const int count = (is_attention ? kHead : s.hidden) / 16;
      waiting = products(ring, k_steps, count, middle, stride, R, send, refill);
      kind = kind == 2 ? 0 : kind + 1;
      if (kind == 0) l++;
    }

    // All columns of the features.
    const bf16* const last_norm = arrays.norms + size_t(3 * s.layers) * D;
    sync_cluster_shared();
#pragma unroll 1
    for (int unit = warp; unit < R * (D / 32); unit += kWarps) {
      const int row = unit / (D / 32);
      const int column = unit % (D / 32) * 32 + lane;
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
    const int summing = kThreads / (16 * R) * (16 * R);  // Threads, each with one row.
#pragma unroll 1
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
#pragma unroll 1
      for (int i = tid; tid < summing && i < tiles * R * 16; i += summing) {
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
          const size_t to = (size_t(step) * R + row) * s.vocab + id;
          arrays.logits[to] = sum;
          if (arrays.noise) sum = sum / s.temperature + arrays.noise[to];
          const unsigned long long order = order_of(sum, id);
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
    // The next step polls for the blocks' best logits.
    if (tid < R) {
      unsigned long long top = 0;
      for (int i = tid; i < summing / 16; i += R) top = max(top, bests[i]);
      const uint64_t tag = epoch + exchanges + 1;
      uint64_t* const to = bests_of(tid, blockIdx.x);
      store_relaxed(to, tag << 32 | top >> 32);
      store_relaxed(to + 1, tag << 32 | static_cast<unsigned>(top));
    }
    exchanges++;
  }
  if (blockIdx.x == 0) {
#pragma unroll 1
    for (int row = warp; row < R; row += kWarps) {
      const int token = chosen(row);
      if (lane == 0) arrays.chosen[(s.steps - 1) * R + row] = token;
    }
    // All blocks have read the epoch.
    __syncthreads();
    if (tid == 0) store_relaxed(arrays.scratch + kEpoch, epoch + exchanges);
  }
  // Others of the cluster may still read this block's shared memory.
  sync_cluster_shared();
}

}  // namespace specdec
