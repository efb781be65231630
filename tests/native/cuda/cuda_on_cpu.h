// Runs CUDA kernels on a CPU, so that their results can be tested without a GPU.
//
// A block is a thread of the system and its CUDA threads are fibers that take turns at
// barriers, shuffles and polls. The blocks of a cluster run together, or, with `together`,
// all blocks of a grid. Shared memory begins as NaNs. A barrier that not all threads reach
// ends the process with a message. CUDA_ON_CPU_SEED=n changes the order of the turns and
// whether a bulk copy is done when it is started or when it is waited for: a race gives
// other results under some seeds.
//
// Supported: threadIdx.x, blockIdx, dynamic and static shared memory, __syncthreads,
// __syncwarp, shuffles of whole warps, clusters (sync, block_rank, map_shared_rank),
// bfloat16, vector types, and the primitives of device.cuh: mma, bulk copies with their
// barriers, relaxed loads and stores. No speed can be read from it.
#pragma once

#include <sched.h>
#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static thread_local
#define __align__(n) __attribute__((aligned(n)))
#define DYNAMIC_SHARED(type, name) \
  type* name = reinterpret_cast<type*>(cuda_on_cpu::block->shared)

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct float2 {
  float x, y;
};
struct __align__(16) float4 {
  float x, y, z, w;
};
struct __align__(8) uint2 {
  unsigned x, y;
};
struct __align__(16) uint4 {
  unsigned x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}

struct __nv_bfloat16 {
  uint16_t bits;
};
inline float __uint_as_float(unsigned u) {
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
inline unsigned __float_as_uint(float f) {
  unsigned u;
  std::memcpy(&u, &f, 4);
  return u;
}
inline float __bfloat162float(__nv_bfloat16 b) {
  return __uint_as_float(unsigned(b.bits) << 16);
}
inline __nv_bfloat16 __float2bfloat16(float f) {
  const unsigned u = __float_as_uint(f);
  if (f != f) return {0x7fff};
  return {uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16)};
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
  const uint64_t all = uint64_t(b) << 32 | a;
  unsigned r = 0;
  for (int i = 0; i < 4; i++) r |= unsigned(all >> 8 * (s >> 4 * i & 7) & 255) << 8 * i;
  return r;
}
using std::max;
using std::min;
template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
inline float __expf(float x) { return std::exp(x); }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }

// Of the block that this thread of the system runs.
inline thread_local dim3 gridDim;
inline thread_local dim3 blockDim;

namespace cuda_on_cpu {

// A barrier of some fibers of one block.
struct Meeting {
  int size = 0;
  int here = 0;
  unsigned turn = 0;
};
struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  dim3 thread;
  bool done = false;
};
struct Copy {
  void* to;
  const void* from;
  size_t bytes;
};
// What one lane gives to a matrix product of its warp.
struct Fragments {
  unsigned a[4];
  unsigned b[2];
};
struct Cluster;
struct Block {
  Cluster* cluster;
  int rank;
  int threads;
  int now = 0;
  int alive;
  dim3 index;
  dim3 grid;
  std::vector<char> memory;
  char* shared;
  std::vector<Fiber> fibers;
  std::vector<Meeting> warps;
  std::vector<uint64_t> slots;
  std::vector<Fragments> fragments;
  std::vector<int> next;  // The order of turns: a ring of the fibers that are not done.
  Meeting all;
  ucontext_t home;
  long idle = 0;
  std::map<uint64_t*, std::vector<Copy>> copies;  // Started and not done yet.
  std::mt19937 random;
  bool is_seeded = false;
};
struct Cluster {
  std::vector<std::unique_ptr<Block>> blocks;
  std::unique_ptr<std::barrier<>> meeting;
};
inline thread_local Block* block = nullptr;
inline int cluster_barriers = 0;  // Of the first cluster in the last launch.

inline int after(Block* b, int from) {
  int to = b->next[from];
  while (b->fibers[to].done) to = b->next[to];
  return b->next[from] = to;
}
inline void yield() {
  Block* b = block;
  if (++b->idle > 4000L * b->threads) {
    std::fprintf(stderr, "block %u: a barrier that not all threads reach\n", b->index.x);
    std::abort();
  }
  const int from = b->now;
  b->now = after(b, from);
  if (b->now != from) swapcontext(&b->fibers[from].context, &b->fibers[b->now].context);
}
inline void meet(Meeting& m) {
  const unsigned turn = m.turn;
  if (++m.here == m.size) {
    m.here = 0;
    m.turn++;
    block->idle = 0;
    return;
  }
  while (m.turn == turn) yield();
}
inline void sync_block() { meet(block->all); }
inline void sync_cluster() {
  sync_block();
  if (block->now == 0) {
    if (block->index.x == 0) cluster_barriers++;
    block->cluster->meeting->arrive_and_wait();
  }
  sync_block();
}
inline void start(unsigned low, unsigned high) {
  (*reinterpret_cast<const std::function<void()>*>(uint64_t(high) << 32 | low))();
  Block* b = block;
  b->fibers[b->now].done = true;
  b->idle = 0;
  b->all.size--;
  if (b->all.here && b->all.here == b->all.size) {
    b->all.here = 0;
    b->all.turn++;
  }
  if (--b->alive == 0) setcontext(&b->home);
  b->now = after(b, b->now);
  setcontext(&b->fibers[b->now].context);
}
inline void run(Block* b, const std::function<void()>& kernel) {
  block = b;
  gridDim = b->grid;
  blockDim = dim3(b->threads);
  const uint64_t at = reinterpret_cast<uint64_t>(&kernel);
  for (int i = 0; i < b->threads; i++) {
    Fiber& f = b->fibers[i];
    f.thread = dim3(i, 0, 0);
    f.stack.reset(new char[1 << 16]);
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.get();
    f.context.uc_stack.ss_size = 1 << 16;
    f.context.uc_link = nullptr;
    const auto entry = reinterpret_cast<void (*)()>(start);
    makecontext(&f.context, entry, 2, unsigned(at), unsigned(at >> 32));
  }
  swapcontext(&b->home, &b->fibers[0].context);
}
inline std::unique_ptr<Block> made(Cluster* cluster, int rank, int threads, size_t bytes,
                                   dim3 index, dim3 grid) {
  std::unique_ptr<Block> b(new Block);
  b->cluster = cluster;
  b->rank = rank;
  b->threads = b->alive = threads;
  b->index = index;
  b->grid = grid;
  b->memory.assign(bytes + 128, char(0xff));
  b->shared = b->memory.data() + (128 - reinterpret_cast<uint64_t>(b->memory.data()) % 128);
  b->fibers = std::vector<Fiber>(threads);
  b->warps.resize((threads + 31) / 32);
  for (auto& w : b->warps) w.size = 32;
  b->slots.resize(threads);
  b->fragments.resize(threads);
  b->all.size = threads;
  std::vector<int> order(threads);
  std::iota(order.begin(), order.end(), 0);
  if (const char* seed = std::getenv("CUDA_ON_CPU_SEED")) {
    b->is_seeded = true;
    b->random.seed(std::atoi(seed) * 1000 + index.x);
    std::shuffle(order.begin(), order.end(), b->random);
  }
  b->next.resize(threads);
  for (int i = 0; i < threads; i++) b->next[order[i]] = order[(i + 1) % threads];
  return b;
}
inline void launch(dim3 grid, int threads, int cluster, size_t bytes,
                   const std::function<void()>& kernel, bool together = false) {
  cluster_barriers = 0;
  std::vector<std::unique_ptr<Cluster>> clusters;
  std::vector<std::thread> running;
  const auto wait = [&] {
    for (auto& thread : running) thread.join();
    running.clear();
    clusters.clear();
  };
  for (unsigned y = 0; y < grid.y; y++) {
    for (unsigned x = 0; x < grid.x; x += cluster) {
      clusters.emplace_back(new Cluster);
      Cluster* c = clusters.back().get();
      c->meeting.reset(new std::barrier<>(cluster));
      for (int r = 0; r < cluster; r++)
        c->blocks.push_back(made(c, r, threads, bytes, dim3(x + r, y, 0), grid));
      for (auto& b : c->blocks)
        running.emplace_back([&kernel, one = b.get()] { run(one, kernel); });
      if (!together) wait();
    }
  }
  wait();
}
template <class T>
T shuffle(T v, int from) {
  Block* b = block;
  const int me = b->now;
  const int warp = me / 32;
  std::memcpy(&b->slots[me], &v, sizeof v);
  meet(b->warps[warp]);
  T r;
  std::memcpy(&r, &b->slots[from < 32 ? warp * 32 + from : me], sizeof r);
  meet(b->warps[warp]);
  return r;
}
inline float of_pair(unsigned pair, int i) {
  return __uint_as_float(i ? pair & 0xffff0000u : pair << 16);
}

}  // namespace cuda_on_cpu

#define threadIdx (cuda_on_cpu::block->fibers[cuda_on_cpu::block->now].thread)
#define blockIdx (cuda_on_cpu::block->index)
inline void __syncthreads() { cuda_on_cpu::sync_block(); }
inline void __syncwarp() {
  cuda_on_cpu::meet(cuda_on_cpu::block->warps[cuda_on_cpu::block->now / 32]);
}
template <class T>
T __shfl_xor_sync(unsigned, T v, int o) {
  return cuda_on_cpu::shuffle(v, (cuda_on_cpu::block->now % 32) ^ o);
}

namespace cooperative_groups {
struct cluster_group {
  int block_rank() const { return cuda_on_cpu::block->rank; }
  void sync() const { cuda_on_cpu::sync_cluster(); }
  template <class T>
  T* map_shared_rank(T* p, int rank) const {
    auto* b = cuda_on_cpu::block;
    const auto offset = reinterpret_cast<const char*>(p) - b->shared;
    return reinterpret_cast<T*>(b->cluster->blocks[rank]->shared + offset);
  }
};
inline cluster_group this_cluster() { return {}; }
}  // namespace cooperative_groups

// ---- The primitives of device.cuh. ----

namespace specdec {

// Lets other blocks go on, in a loop that waits for them.
inline void spin(long long&) {
  auto* b = cuda_on_cpu::block;
  b->idle = 0;
  cuda_on_cpu::yield();
  if (b->now % 32 == 0) sched_yield();
}
inline void sync_cluster_shared() { cuda_on_cpu::sync_cluster(); }
inline uint64_t load_relaxed(const uint64_t* p) {
  return __atomic_load_n(p, __ATOMIC_RELAXED);
}
inline void store_relaxed(uint64_t* p, uint64_t v) {
  __atomic_store_n(p, v, __ATOMIC_RELAXED);
}

// A barrier of copies holds how many of its phases are complete.
inline void barrier_init(uint64_t* barrier) { *barrier = 0; }
inline void barrier_fence() {}
inline void finish_copies(uint64_t* barrier) {
  auto& copies = cuda_on_cpu::block->copies[barrier];
  if (copies.empty()) return;
  for (const auto& copy : copies) std::memcpy(copy.to, copy.from, copy.bytes);
  copies.clear();
  ++*barrier;
}
inline void copy_bulk(void* to, const void* from, unsigned bytes, uint64_t* barrier) {
  auto* b = cuda_on_cpu::block;
  if (!b->copies[barrier].empty()) {
    std::fprintf(stderr, "block %u: a copy over one that nobody waited for\n", b->index.x);
    std::abort();
  }
  b->copies[barrier].push_back({to, from, bytes});
  if (b->is_seeded && b->random() % 2) finish_copies(barrier);
}
inline void barrier_wait(uint64_t* barrier, unsigned parity) {
  finish_copies(barrier);
  if (*barrier % 2 == parity) {
    std::fprintf(stderr, "block %u: a wait for a copy that was not started\n",
                 cuda_on_cpu::block->index.x);
    std::abort();
  }
}

// c += A B: mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 of PTX.
inline void mma(float (&c)[4], const unsigned (&a)[4], const uint2& b) {
  auto* block = cuda_on_cpu::block;
  const int me = block->now;
  const int warp = me / 32;
  const int group = me % 32 / 4;
  const int pair = me % 4;
  auto& mine = block->fragments[me];
  std::copy(a, a + 4, mine.a);
  mine.b[0] = b.x;
  mine.b[1] = b.y;
  cuda_on_cpu::meet(block->warps[warp]);
  const auto* lanes = &block->fragments[warp * 32];
  for (int i = 0; i < 4; i++) {
    const int row = group + i / 2 * 8;
    const int column = 2 * pair + i % 2;
    for (int k = 0; k < 16; k++) {
      const unsigned of_a = lanes[row % 8 * 4 + k % 8 / 2].a[row / 8 + k / 8 * 2];
      const unsigned of_b = lanes[column * 4 + k % 8 / 2].b[k / 8];
      c[i] += cuda_on_cpu::of_pair(of_a, k % 2) * cuda_on_cpu::of_pair(of_b, k % 2);
    }
  }
  cuda_on_cpu::meet(block->warps[warp]);
}

// Two differences of bfloat16s, rounded to bfloat16.
inline unsigned subtract_pairs(unsigned a, unsigned b) {
  unsigned result = 0;
  for (int i = 0; i < 2; i++) {
    const float difference = cuda_on_cpu::of_pair(a, i) - cuda_on_cpu::of_pair(b, i);
    result |= unsigned(__float2bfloat16(difference).bits) << 16 * i;
  }
  return result;
}

}  // namespace specdec
