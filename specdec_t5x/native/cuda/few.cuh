// y = x W for 1 to 8 rows x [R, I] and W [I, O] as T5X stores it, of int8 or int4 with a
// scale for each column, by tensor cores with float32 sums.
//
// All of the work is reading W once. A warp multiplies some columns by 16 inputs at a time;
// the inputs are divided among a block's warps and among the C blocks of a cluster, whose
// sums are added in one order that depends on I and C alone. So a row has the same bits
// alone and among others. Up to 3 matrices share x and a launch.
#pragma once

#include "device.cuh"

namespace specdec {

#ifndef SPECDEC_FEW_WARPS
#define SPECDEC_FEW_WARPS 8
#endif
constexpr int kFewWarps = SPECDEC_FEW_WARPS;
constexpr int kFewThreads = kFewWarps * 32;
constexpr int kFewRows = 8;
constexpr int kMostMatrices = 3;
constexpr int kColumns = 16;            // Of a vector of codes.
constexpr int kWidth = kColumns * 8;    // Columns of a block.
constexpr int kTiles = kColumns / 2;    // Of 16 columns, a pair of each lane's.

// How 4 inputs (rows r[0] .. r[3] of W, one vector each) become fragments of mma: pairs of
// inputs 0 and 1, and of inputs 2 and 3, for each of the vector's columns.
struct Int8Weights {
  typedef uint4 Vector;
  // The pairs of column i.
  __device__ __forceinline__ static void pairs(const Vector (&r)[4], int i, unsigned& low,
                                               unsigned& high) {
    low = pair(word(r[0], i / 4), word(r[1], i / 4), i % 4);
    high = pair(word(r[2], i / 4), word(r[3], i / 4), i % 4);
  }
  __device__ __forceinline__ static unsigned word(const uint4& v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
  }
  // Byte i of each word. 0x4300 is 128 in bfloat16, whose last digit counts ones there: the
  // lower 7 bits are added to it, and 128, or 256 where the sign is set, taken away.
  __device__ __forceinline__ static unsigned pair(unsigned a, unsigned b, int i) {
    const unsigned bytes = __byte_perm(a, b, i | i << 4 | (i + 4) << 8 | (i + 4) << 12);
    return subtract_pairs((bytes & 0x007f007fu) | 0x43004300u,
                          (bytes & 0x00800080u) | 0x43004300u);
  }
};

// Two's complement, the even column in a byte's lower half.
struct Int4Weights {
  typedef uint2 Vector;
  __device__ __forceinline__ static void pairs(const Vector (&r)[4], int i, unsigned& low,
                                               unsigned& high) {
    low = pair(word(r[0], i / 8), word(r[1], i / 8), i % 8);
    high = pair(word(r[2], i / 8), word(r[3], i / 8), i % 8);
  }
  __device__ __forceinline__ static unsigned word(const uint2& v, int i) {
    return i ? v.y : v.x;
  }
  // With its sign flipped a number is 8 too large: 136 is taken away from 128 and it.
  __device__ __forceinline__ static unsigned pair(unsigned a, unsigned b, int i) {
    const unsigned halves = __byte_perm(a, b, i < 4 ? 0x5410 : 0x7632);
    const unsigned digits = (halves >> (4 * (i % 4)) & 0x000f000fu) ^ 0x43084308u;
    return subtract_pairs(digits, 0x43084308u);
  }
};

struct FewMatrix {
  const void* weights;
  const bf16* scales;  // [O]
  bf16* y;             // [R, O]
  int outputs;
  int blocks;          // Blocks of columns up to and with this matrix.
};

struct FewArrays {
  const bf16* x;  // [R, I]
  FewMatrix matrices[kMostMatrices];
  int rows;
  int inputs;
};

__host__ __device__ __forceinline__ int few_stride(int inputs) {
  return (inputs + 63) / 64 * 64 + 16;
}
// Inputs of one block, at most.
__host__ __device__ __forceinline__ int few_inputs(int inputs, int cluster) {
  return ((inputs / 16 + cluster - 1) / cluster + 1) * 16;
}
__host__ __device__ __forceinline__ int few_bytes(int rows, int inputs, int cluster) {
  const int x = rows * few_stride(few_inputs(inputs, cluster)) * 2;
  return x + (kFewWarps + 1) * kTiles * 32 * 16;
}

__device__ __forceinline__ void add(float4& sum, const float4& v) {
  sum.x += v.x;
  sum.y += v.y;
  sum.z += v.z;
  sum.w += v.w;
}

template <class W, int C>
__global__ void __launch_bounds__(kFewThreads)
    few_kernel(const __grid_constant__ FewArrays a) {
  DYNAMIC_SHARED(char, shared);
  typedef typename W::Vector Vector;
  // Blocks of 16 inputs that a warp reads ahead: the faster number on an H100.
  constexpr int kUnroll = C < 8 ? 2 : 1;
  const int tid = threadIdx.x;
  const int lane = tid % 32;
  const int warp = tid / 32;
  const int group = lane / 4;
  const int quarter = lane % 4;
  const int rank = blockIdx.x % C;
  const int R = a.rows;

  int block = blockIdx.x / C;
  int which = 0;
  while (block >= a.matrices[which].blocks) which++;
  if (which) block -= a.matrices[which - 1].blocks;
  const FewMatrix& matrix = a.matrices[which];
  const int vectors = matrix.outputs / kColumns;  // Of a row of W.
  const int vector = block * 8 + group;
  const bool is_column = vector < vectors;

  // Blocks of 16 inputs: this block's and this warp's.
  const int all = a.inputs / 16;
  const int block_from = all * rank / C;
  const int block_to = all * (rank + 1) / C;
  const int here = block_to - block_from;
  const int from = block_from + here * warp / kFewWarps;
  const int to = block_from + here * (warp + 1) / kFewWarps;

  const Vector* const weights = reinterpret_cast<const Vector*>(matrix.weights) + vector;
  const auto read = [&](int step, Vector (&r)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const bool is_there = is_column && step < to;
      const size_t row = size_t(step) * 16 + quarter * 4 + i;
      r[i] = is_there ? __ldcs(weights + row * vectors) : Vector{};
    }
  };
  // The first weights wait for nothing.
  Vector next[kUnroll][4];
#pragma unroll
  for (int u = 0; u < kUnroll; u++) read(from + u, next[u]);

  bf16* const x = reinterpret_cast<bf16*>(shared);
  const int stride = few_stride(few_inputs(a.inputs, C));
  float4* const sums = reinterpret_cast<float4*>(shared + R * stride * 2);
  float4* const total = sums + kFewWarps * kTiles * 32;
  const int eights = here * 2;  // Of a row's inputs.
#pragma unroll 2
  for (int unit = tid; unit < R * eights; unit += kFewThreads) {
    const int row = unit / eights;
    const int i = unit % eights * 8;
    const bf16* const of_row = a.x + size_t(row) * a.inputs + block_from * 16;
    *reinterpret_cast<uint4*>(x + row * stride + i) =
        *reinterpret_cast<const uint4*>(of_row + i);
  }
  __syncthreads();

  float c[kTiles][4] = {};
  for (int step = from; step < to; step += kUnroll) {
    Vector now[kUnroll][4];
#pragma unroll
    for (int u = 0; u < kUnroll; u++) {
#pragma unroll
      for (int i = 0; i < 4; i++) now[u][i] = next[u][i];
    }
#pragma unroll
    for (int u = 0; u < kUnroll; u++) read(step + kUnroll + u, next[u]);
#pragma unroll
    for (int u = 0; u < kUnroll; u++) {
      if (step + u >= to) continue;
      uint2 b = make_uint2(0, 0);
      const int k = (step + u - block_from) * 16 + quarter * 4;
      if (group < R) b = *reinterpret_cast<const uint2*>(x + group * stride + k);
#pragma unroll
      for (int t = 0; t < kTiles; t++) {
        unsigned fragment[4];
        W::pairs(now[u], 2 * t, fragment[0], fragment[2]);
        W::pairs(now[u], 2 * t + 1, fragment[1], fragment[3]);
        mma(c[t], fragment, b);
      }
    }
  }

  // The warps' sums, then the cluster's, as lanes hold them.
#pragma unroll
  for (int t = 0; t < kTiles; t++)
    sums[(warp * kTiles + t) * 32 + lane] = make_float4(c[t][0], c[t][1], c[t][2], c[t][3]);
  __syncthreads();
  for (int i = tid; i < kTiles * 32; i += kFewThreads) {
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int w = 0; w < kFewWarps; w++) add(sum, sums[w * kTiles * 32 + i]);
    total[i] = sum;
  }
  const cg::cluster_group cluster = cg::this_cluster();
  if (C > 1) {
    sync_cluster_shared();
  } else {
    __syncthreads();
  }
  const auto finish = [&](int row, int column, float first, float second) {
    if (row >= R) return;
    first *= __bfloat162float(matrix.scales[column]);
    second *= __bfloat162float(matrix.scales[column + 1]);
    const size_t at = size_t(row) * matrix.outputs + column;
    *reinterpret_cast<unsigned*>(matrix.y + at) = pack_pair(first, second);
  };
  // Each block of the cluster finishes some of the columns.
  for (int i = tid + rank * kFewThreads; i < kTiles * 32; i += C * kFewThreads) {
    float4 parts[C];
#pragma unroll
    for (int b = 0; b < C; b++) parts[b] = *cluster.map_shared_rank(total + i, b);
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int b = 0; b < C; b++) add(sum, parts[b]);
    const int column = block * kWidth + i % 32 / 4 * kColumns + i / 32 * 2;
    if (column >= matrix.outputs) continue;
    finish(i % 4 * 2, column, sum.x, sum.z);
    finish(i % 4 * 2 + 1, column, sum.y, sum.w);
  }
  if (C > 1) sync_cluster_shared();
}

}  // namespace specdec
