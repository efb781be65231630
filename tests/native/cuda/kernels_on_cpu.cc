// The CUDA kernels as functions for ctypes, run on a CPU.

// The number of the fault that is planted in a copy of the kernels with faults.
extern "C" int specdec_fault;
int specdec_fault = -1;

#include "few.cuh"
#include "step.cuh"

using namespace specdec;

template <int C>
static void run_step(const StepShape& shape, const StepArrays& arrays) {
  const StepLayout layout(shape, C);
  cuda_on_cpu::launch(
      shape.heads * C, kThreads, C, layout.bytes, [&] { step_kernel<C>(shape, arrays); },
      true);
}

extern "C" int specdec_step(int cluster, const StepShape* shape, const StepArrays* arrays) {
  if (cluster == 2) run_step<2>(*shape, *arrays);
  if (cluster == 4) run_step<4>(*shape, *arrays);
  return cluster == 2 || cluster == 4 ? 0 : 1;
}

extern "C" int specdec_cluster_barriers() { return cuda_on_cpu::cluster_barriers; }

template <class W, int C>
static void run_few(FewArrays arrays, int count) {
  int blocks = 0;
  for (int i = 0; i < count; i++) {
    blocks += (arrays.matrices[i].outputs + kWidth - 1) / kWidth;
    arrays.matrices[i].blocks = blocks;
  }
  const int bytes = few_bytes(arrays.rows, arrays.inputs, C);
  cuda_on_cpu::launch(blocks * C, kFewThreads, C, bytes,
                      [&] { few_kernel<W, C>(arrays); });
}

template <class W>
static int run_few(int cluster, const FewArrays& arrays, int count) {
  if (cluster == 1) run_few<W, 1>(arrays, count);
  if (cluster == 2) run_few<W, 2>(arrays, count);
  if (cluster == 8) run_few<W, 8>(arrays, count);
  return 0;
}

extern "C" int specdec_few(int bits, int cluster, const FewArrays* arrays, int count) {
  if (bits == 8) return run_few<Int8Weights>(cluster, *arrays, count);
  return run_few<Int4Weights>(cluster, *arrays, count);
}
