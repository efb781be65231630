// What the kernels need of a GPU, in one place; a CPU's version is in cuda_on_cpu.h.
#pragma once

#ifndef __CUDACC__
#include "cuda_on_cpu.h"
#else
#include <cooperative_groups.h>
#include <cuda_bf16.h>

#include <cstdint>

#define DYNAMIC_SHARED(type, name) extern __shared__ __align__(128) type name[]

namespace specdec {

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// Ends the program with an error if a loop polls for some seconds: the blocks that it waits
// for are not on the card. `since` is 0 before the first turn.
__device__ __forceinline__ void spin(long long& since) {
  const long long now = clock64();
  if (!since) since = now;
  if (now - since > 4000000000ll) __trap();
}

// A barrier of the cluster's threads, for shared memory alone. cluster.sync() would also wait
// until everything that was written to global memory is seen by the whole card, and empty
// the block's cache. What a block wrote to its shared memory is there after its own barrier,
// for others of the cluster, too.
__device__ __forceinline__ void sync_cluster_shared() {
  __syncthreads();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

// One access of 64 bits: other blocks see all of it or none of it.
__device__ __forceinline__ uint64_t load_relaxed(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void store_relaxed(uint64_t* p, uint64_t v) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

// A barrier in shared memory that one thread arms with the bytes of a copy.
__device__ __forceinline__ void barrier_init(uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier))
               : "memory");
}
// Shows initialised barriers to the unit that copies.
__device__ __forceinline__ void barrier_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Starts a copy from global to shared memory; `barrier` completes a phase when it is done.
__device__ __forceinline__ void copy_bulk(void* to, const void* from, unsigned bytes,
                                          uint64_t* barrier) {
  const unsigned at = shared_address(barrier);
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at),
               "r"(bytes)
               : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(at)
      : "memory");
}
// Waits until the phase of this parity is complete.
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, unsigned parity) {
  const unsigned at = shared_address(barrier);
  unsigned done = 0;
  long long since = 0;
  while (!done) {
    spin(since);
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}\n"
        : "=r"(done)
        : "r"(at), "r"(parity)
        : "memory");
  }
}

// c += A B for A [16, 16] and B [16, 8] of bfloat16, by one warp.
//
// With group = lane / 4 and t = lane % 4 a lane holds rows group and group + 8 of A (a[0]
// and a[1], then a[2] and a[3] of the other inputs), column group of B, and of c rows group
// (c[0], c[1]) and group + 8 (c[2], c[3]) at columns 2 t and 2 t + 1. The hardware's inputs
// 2 t, 2 t + 1, 2 t + 8, 2 t + 9 are our 4 t .. 4 t + 3: a sum may take them in any order.
__device__ __forceinline__ void mma(float (&c)[4], const unsigned (&a)[4], const uint2& b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}

// Two differences of bfloat16s.
__device__ __forceinline__ unsigned subtract_pairs(unsigned a, unsigned b) {
  unsigned d;
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

}  // namespace specdec
#endif

namespace specdec {

namespace cg = cooperative_groups;
typedef __nv_bfloat16 bf16;

// What kernels without float32 inputs share.
__device__ __forceinline__ float low_half(unsigned pair) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float high_half(unsigned pair) {
  return __uint_as_float(pair & 0xffff0000u);
}
__device__ __forceinline__ unsigned pack_pair(float a, float b) {
  const unsigned low = __float_as_uint(__bfloat162float(__float2bfloat16(a)));
  const unsigned high = __float_as_uint(__bfloat162float(__float2bfloat16(b)));
  return low >> 16 | high;
}
__device__ __forceinline__ uint4 pack(const float* v) {
  return make_uint4(pack_pair(v[0], v[1]), pack_pair(v[2], v[3]), pack_pair(v[4], v[5]),
                    pack_pair(v[6], v[7]));
}
__device__ __forceinline__ void unpack(const uint4& u, float (&v)[8]) {
  v[0] = low_half(u.x);
  v[1] = high_half(u.x);
  v[2] = low_half(u.y);
  v[3] = high_half(u.y);
  v[4] = low_half(u.z);
  v[5] = high_half(u.z);
  v[6] = low_half(u.w);
  v[7] = high_half(u.w);
}

__device__ __forceinline__ float tanh_approximate(float x) {
  // 1 - 2 / (e^2x + 1): no overflow at either end.
  return 1.f - 2.f / (__expf(2.f * x) + 1.f);
}
// Flax's gelu: the approximation by tanh.
__device__ __forceinline__ float gelu(float x) {
  const float inner = 0.7978845608f * (x + 0.044715f * x * x * x);
  return 0.5f * x * (1.f + tanh_approximate(inner));
}

}  // namespace specdec
