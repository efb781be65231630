// Runs and times the CUDA kernels without XLA, for lab/gpu_kernels.py.
#include <cuda_runtime.h>

#include <algorithm>
#include <vector>

#include "few_launch.cuh"
#include "step_launch.cuh"

// Microseconds of one product, of `repeats` different matrices in turn, in a graph. Each
// brings the first kilobytes of the next matrix to the cache.
extern "C" float specdec_few_time(int bits, int cluster, int unroll, int rows, int inputs,
                                  int outputs, int repeats, int next_kilobytes) {
  using namespace specdec;
  const size_t bytes = size_t(inputs) * outputs * bits / 8;
  char* weights;
  bf16* x;
  bf16* y;
  if (cudaMalloc(&weights, bytes * repeats) != cudaSuccess) return -1;
  if (cudaMalloc(&x, size_t(rows + 1) * inputs * 2) != cudaSuccess) return -1;
  if (cudaMalloc(&y, size_t(rows + 1) * outputs * 2) != cudaSuccess) return -1;
  cudaMemset(weights, 0x31, bytes * repeats);
  cudaMemset(x, 0x3c, size_t(rows + 1) * inputs * 2);
  cudaMemset(y, 0x3c, size_t(rows + 1) * outputs * 2);
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  cudaError_t error = cudaSuccess;
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  for (int i = 0; i < repeats; i++) {
    FewArrays arrays = {};
    arrays.x = x;
    arrays.rows = rows;
    arrays.inputs = inputs;
    FewMatrix& matrix = arrays.matrices[0];
    matrix.weights = weights + bytes * i;
    matrix.scales = y;
    matrix.y = y + outputs;
    matrix.outputs = outputs;
    arrays.next = weights + bytes * ((i + 1) % repeats);
    arrays.next_lines = std::min(bytes, size_t(next_kilobytes) * 1024) / 128;
    const cudaError_t one = LaunchFewOf(bits, cluster, unroll, stream, arrays, 1);
    if (one != cudaSuccess) error = one;
  }
  cudaStreamEndCapture(stream, &graph);
  cudaGraphInstantiate(&exec, graph, 0);
  cudaEvent_t start;
  cudaEvent_t end;
  cudaEventCreate(&start);
  cudaEventCreate(&end);
  float best = 1e30f;
  for (int i = 0; i < 6; i++) {
    cudaEventRecord(start, stream);
    cudaGraphLaunch(exec, stream);
    cudaEventRecord(end, stream);
    cudaEventSynchronize(end);
    float ms;
    cudaEventElapsedTime(&ms, start, end);
    if (i > 1 && ms < best) best = ms;
  }
  if (error == cudaSuccess) error = cudaGetLastError();
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  cudaFree(weights);
  cudaFree(x);
  cudaFree(y);
  return error == cudaSuccess ? best * 1e3f / repeats : -2 - float(error);
}

namespace {

// Memory on the device with a copy of the host's.
class Memory {
 public:
  template <class T>
  T* copied(T* host, size_t bytes) {
    void* made = nullptr;
    if (cudaMalloc(&made, bytes) != cudaSuccess) return nullptr;
    cudaMemcpy(made, host, bytes, cudaMemcpyHostToDevice);
    made_.push_back(made);
    return static_cast<T*>(made);
  }
  ~Memory() {
    for (void* memory : made_) cudaFree(memory);
  }

 private:
  std::vector<void*> made_;
};

}  // namespace

// Runs a step on copies of host arrays, whose results are copied back, then times graphs of
// `launches` launches: us[0] of a launch after the cache was emptied before each graph, us[1]
// without. Returns an error's number.
extern "C" int specdec_step_run(int cluster, const specdec::StepShape* shape,
                                const specdec::StepArrays* host, int cooperative,
                                int launches, float* us) {
  using namespace specdec;
  const StepShape& s = *shape;
  Memory memory;
  StepArrays a = *host;
  const size_t R = s.rows;
  const size_t blocks = s.heads * cluster;
  a.tokens = memory.copied(host->tokens, R * 4);
  a.index = memory.copied(host->index, R * 4);
  a.weights = memory.copied(host->weights, blocks * s.chunks * kChunk);
  a.embedding = memory.copied(host->embedding, size_t(s.vocab) * s.width * 2);
  a.norms = memory.copied(host->norms, size_t(3 * s.layers + 1) * s.width * 2);
  a.biases = memory.copied(host->biases, size_t(s.heads) * s.distances * 4);
  a.mask = memory.copied(host->mask, R * s.inputs);
  const size_t scratch = (kSums + 2 * size_t(s.heads) * R * s.width) * 8;
  a.scratch = memory.copied(host->scratch, scratch);
  const size_t chosen = s.steps * R * 4;
  const size_t logits = s.steps * R * s.vocab * 4;
  const size_t features = s.steps * R * s.width * 2;
  a.chosen = memory.copied(host->chosen, chosen);
  a.logits = memory.copied(host->logits, logits);
  a.features = memory.copied(host->features, features);
  const size_t own = R * s.heads * s.slots * kHead * 2;
  const size_t cross = R * s.heads * s.inputs * kHead * 2;
  for (int l = 0; l < s.layers; l++) {
    a.keys[l] = memory.copied(host->keys[l], own);
    a.values[l] = memory.copied(host->values[l], own);
    a.cross_keys[l] = memory.copied(host->cross_keys[l], cross);
    a.cross_values[l] = memory.copied(host->cross_values[l], cross);
  }
  cudaError_t error = LaunchStepOf(cluster, 0, s, a, cooperative);
  if (error != cudaSuccess) return error;
  error = cudaDeviceSynchronize();
  if (error != cudaSuccess) return error;
  cudaMemcpy(host->chosen, a.chosen, chosen, cudaMemcpyDeviceToHost);
  cudaMemcpy(host->logits, a.logits, logits, cudaMemcpyDeviceToHost);
  cudaMemcpy(host->features, a.features, features, cudaMemcpyDeviceToHost);
  cudaMemcpy(host->scratch, a.scratch, scratch, cudaMemcpyDeviceToHost);
  for (int l = 0; l < s.layers; l++) {
    cudaMemcpy(host->keys[l], a.keys[l], own, cudaMemcpyDeviceToHost);
    cudaMemcpy(host->values[l], a.values[l], own, cudaMemcpyDeviceToHost);
  }
  if (!launches) return cudaGetLastError();

  cudaStream_t stream;
  cudaStreamCreate(&stream);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  for (int i = 0; i < launches; i++) LaunchStepOf(cluster, stream, s, a, cooperative);
  cudaStreamEndCapture(stream, &graph);
  error = cudaGraphInstantiate(&exec, graph, 0);
  if (error != cudaSuccess) return error;
  cudaEvent_t start;
  cudaEvent_t end;
  cudaEventCreate(&start);
  cudaEventCreate(&end);
  const size_t others = 256 << 20;
  char* other;
  cudaMalloc(&other, others);
  for (int empty = 1; empty >= 0; empty--) {
    std::vector<float> times;
    for (int i = 0; i < 15; i++) {
      if (empty) cudaMemsetAsync(other, i, others, stream);
      cudaEventRecord(start, stream);
      cudaGraphLaunch(exec, stream);
      cudaEventRecord(end, stream);
      cudaEventSynchronize(end);
      float ms;
      cudaEventElapsedTime(&ms, start, end);
      if (i > 3) times.push_back(ms * 1e3f / launches);
    }
    std::sort(times.begin(), times.end());
    us[1 - empty] = times[times.size() / 2];
  }
  cudaFree(other);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return cudaGetLastError();
}

// How many clusters of the step's blocks are on the card at once.
extern "C" int specdec_step_room(int cluster, const specdec::StepShape* shape) {
  const specdec::StepLayout layout(*shape, cluster);
  if (cluster == 16) return specdec::MostClusters<16>(layout.bytes);
  if (cluster == 8) return specdec::MostClusters<8>(layout.bytes);
  return specdec::MostClusters<4>(layout.bytes);
}
