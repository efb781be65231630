// What the processor computes at once, and e^x in a form for compilers to make that of.

#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace specdec {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
constexpr int kLanes = kVectorBytes / sizeof(float);
typedef float Lanes __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));

// Below it e^x is no normal float32.
constexpr float kLowest = -87.0f;

// e^x for x <= 0, to 2 ulp; without branches. e^kLowest for what is lower.
inline float Exp(float x) {
  x = x < kLowest ? kLowest : x;
  const float shifted = x * 1.44269504f + 12582912.0f;  // Rounds to whole numbers.
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  union { float value; uint32_t bits; } power = {shifted};  // Its low bits are n's.
  power.bits = (power.bits + 127) << 23;
  return p * power.value;
}

}  // namespace specdec
