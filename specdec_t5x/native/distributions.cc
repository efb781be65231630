// The distributions that tokens are drawn from, for XLA on CPU: softmax of logits over a
// temperature, of the k largest or of the fewest that reach a mass.
//
// XLA makes passes over all rows for each of these steps. Here a row, which a core's
// cache holds, goes through all of them, and is the same whatever the others are.

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "threads.h"
#include "vectors.h"
#include "xla/ffi/api/ffi.h"

namespace {

using namespace specdec;
namespace ffi = xla::ffi;
using Floats = ffi::Buffer<ffi::F32>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// A number of a distribution takes about as long as so many multiplications.
constexpr int64_t kEach = 16;

struct Token {
  float value, mass;
};

// Returns the largest value for which tokens of no less have `enough` mass; the least,
// where all have not. Goes on in that share of their range where the mass is reached,
// and loses the others.
float Threshold(Token* tokens, Token* end, double enough) {
  constexpr int kShares = 512;
  while (true) {
    float low = kInfinity, high = -kInfinity;
    for (const Token* token = tokens; token < end; ++token) {
      low = std::min(low, token->value);
      high = std::max(high, token->value);
    }
    if (low == high) return low;
    const double scale = kShares / (double(high) - low);
    auto share = [=](const Token& token) {
      return std::min(kShares - 1, int((double(high) - token.value) * scale));
    };
    std::array<double, kShares> masses = {};
    for (const Token* token = tokens; token < end; ++token)
      masses[share(*token)] += token->mass;
    int at = 0;  // Of some mass, or the last, which has the least value.
    while (at < kShares - 1 && masses[at] < enough) enough -= masses[at++];
    auto is_elsewhere = [=](const Token& token) { return share(token) != at; };
    end = std::remove_if(tokens, end, is_elsewhere);
  }
}

// The highest of each of some groups of numbers: group g holds g, g + kGroups, ..
class Highest {
 public:
  Highest(const float* values, int64_t size) {
    groups_.fill(-kInfinity);
    for (int64_t i = 0; i < size; i += kGroups) {
      const int64_t count = std::min<int64_t>(kGroups, size - i);
      for (int64_t g = 0; g < count; ++g)
        groups_[g] = values[i + g] > groups_[g] ? values[i + g] : groups_[g];
    }
  }

  float All() const { return *std::max_element(groups_.begin(), groups_.end()); }

  // A number that is no more than the count-th highest.
  float Below(int64_t count) {
    if (count > kGroups) return -kInfinity;
    const auto place = groups_.begin() + count - 1;
    std::nth_element(groups_.begin(), place, groups_.end(), std::greater<float>());
    return *place;
  }

 private:
  static constexpr int64_t kGroups = 256;
  std::array<float, kGroups> groups_;
};

double Total(const float* masses, int64_t size) {
  double lanes[kLanes] = {}, total = 0;
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes)
    for (int k = 0; k < kLanes; ++k) lanes[k] += masses[i + k];
  for (double lane : lanes) total += lane;
  for (; i < size; ++i) total += masses[i];
  return total;
}

class Row {
 public:
  Row(int64_t size, float temperature, int64_t top_k, float top_p)
      : size_(size), temperature_(temperature), top_k_(top_k), top_p_(top_p),
        values_(size), tokens_(size + 1) {}

  void Distribution(const float* logits, float* probs) {
    int lost = 0;  // NaN, or infinity.
    for (int64_t i = 0; i < size_; ++i) {
      values_[i] = logits[i] / temperature_;
      lost |= !(values_[i] < kInfinity);
    }
    Highest groups(values_.data(), size_);
    const float highest = groups.All();
    if (lost || highest == -kInfinity) {
      std::fill_n(probs, size_, std::numeric_limits<float>::quiet_NaN());
      return;
    }
    for (int64_t i = 0; i < size_; ++i) {
      const float below = values_[i] - highest, mass = Exp(below);
      probs[i] = below < kLowest ? 0.0f : mass;
    }
    if (top_k_ > 0) {
      const float least = groups.Below(top_k_);
      Keep(probs, top_k_, [=](int64_t i) { return values_[i] >= least; });
    }
    if (top_p_ > 0) {
      // Without all that have less than this there is mass enough.
      const double total = Total(probs, size_), least = (1 - top_p_) * total / size_;
      Keep(probs, top_p_ * total, [=](int64_t i) { return probs[i] >= least; });
    }
    const float share = 1 / Total(probs, size_);
    for (int64_t i = 0; i < size_; ++i) probs[i] *= share;
  }

 private:
  // Leaves the fewest tokens of `enough`, in number or mass; among these are some for
  // which `may` holds, and all of those. Ties stay.
  template <typename May>
  void Keep(float* probs, double enough, May may) {
    Token* end = tokens_.data();
    for (int64_t i = 0; i < size_; ++i) {
      *end = {values_[i], top_k_ > 0 ? 1.0f : probs[i]};
      end += may(i) & (probs[i] > 0);
    }
    const float threshold = Threshold(tokens_.data(), end, enough);
    for (int64_t i = 0; i < size_; ++i)
      probs[i] = values_[i] < threshold ? 0.0f : probs[i];
  }

  const int64_t size_;
  const float temperature_;
  const int64_t top_k_;
  const double top_p_;
  std::vector<float> values_;
  std::vector<Token> tokens_;
};

// logits [.., V] -> probabilities [.., V].
ffi::Error Distributions(ffi::ThreadPool pool, Floats logits, ffi::Result<Floats> probs,
                float temperature, int64_t top_k, float top_p) {
  const int64_t size = logits.dimensions().back();
  const int64_t rows = logits.element_count() / std::max<int64_t>(size, 1);
  const float* in = logits.typed_data();
  float* out = probs->typed_data();
  const int64_t parts = std::min(rows, Parts(pool, kEach * rows * size));
  Parallel(pool, parts, [=](int64_t part) {
    Row row(size, temperature, top_k, top_p);
    const int64_t end = rows * (part + 1) / parts;
    for (int64_t r = rows * part / parts; r < end; ++r)
      row.Distribution(in + r * size, out + r * size);
  });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(specdec_adjust, Distributions,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Floats>()
                                  .Ret<Floats>()
                                  .Attr<float>("temperature")
                                  .Attr<int64_t>("top_k")
                                  .Attr<float>("top_p"));
