// The test of tiers that multiply many rows by other instructions than few.
#include "runtime/self_test.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "kernels/coded_layout.h"
#include "kernels/numbers.h"
#include "pack/pack.h"

namespace octavo {

namespace {

constexpr int kOutputs = 40;  // the second panel is not full
constexpr int kCodeInputs = 512;  // two blocks of every format
constexpr int kFloatInputs = 171;  // odd, and no whole number of steps
constexpr int kMostRows = 19;
constexpr int kRowCounts[] = {9, kMostRows};  // less than a tile, and more

// SplitMix64: the same numbers on every machine.
class Numbers {
 public:
  uint32_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return static_cast<uint32_t>((z ^ z >> 31) >> 16);
  }

 private:
  uint64_t state_ = 1;
};

struct Free {
  void operator()(uint8_t* memory) const { std::free(memory); }
};
using Bytes = std::unique_ptr<uint8_t[], Free>;

Bytes zeros(size_t bytes) {
  const size_t rounded = (bytes + kAlign - 1) / kAlign * kAlign;
  auto* memory = static_cast<uint8_t*>(std::aligned_alloc(kAlign, rounded));
  if (!memory) throw std::bad_alloc();
  std::memset(memory, 0, rounded);
  return Bytes(memory);
}

// Any bits of a number with these of its exponents, of which one in eight is denormal. In formats
// of codes for floats these are halves of scales, and codes.
uint16_t some_bf16(Numbers& numbers) {
  const uint32_t bits = numbers.next();
  const uint32_t exponent = bits >> 16 & 7 ? 118 + (bits >> 20) % 18 : 0;
  return static_cast<uint16_t>((bits & 0x807F) | exponent << 7);
}

// Two bytes of codes and scales. Those of scales must be finite: as fp16, or in Mx4 as exponents.
uint16_t some_codes(Numbers& numbers, Format format) {
  const uint32_t bits = numbers.next();
  if (format == Format::Mx4) return static_cast<uint16_t>((bits & 0x1F1F) + 0x7070);
  return static_cast<uint16_t>((bits & 0x7C00) == 0x7C00 ? bits & ~0x4000u : bits);
}

// Rows of very different sizes. Products of every eighth row are denormal.
std::vector<float> some_rows(Numbers& numbers, int inputs) {
  std::vector<float> x;
  for (int row = 0; row < kMostRows; ++row) {
    const float size = row % 8 == 7 ? 0x1p-118f : 1.0f;
    for (int i = 0; i < inputs; ++i) {
      const uint32_t bits = numbers.next();
      const uint32_t exponent = 120 + (bits >> 23) % 10;
      x.push_back(size * bits_to_float((bits & 0x807FFFFFu) | exponent << 23));
    }
  }
  return x;
}

// A matrix of random numbers, and rows.
class RandomProducts {
 public:
  RandomProducts(const KernelTable& kernels, Format format) : kernels_(kernels) {
    const int inputs = format == Format::BF16 ? kFloatInputs : kCodeInputs;
    matrix_ = {nullptr, panel_bytes(format, inputs), kOutputs, inputs, format};
    const int panels = (kOutputs + kPanel - 1) / kPanel;
    weights_ = zeros(panels * matrix_.panel_bytes);
    matrix_.data = weights_.get();
    Numbers numbers;
    for (size_t at = 0; at < panels * matrix_.panel_bytes; at += 2) {
      const uint16_t two =
          multiplies_bf16(format) ? some_bf16(numbers) : some_codes(numbers, format);
      std::memcpy(weights_.get() + at, &two, sizeof two);
    }
    if (format == Format::BF16) clear_beside_last_input(panels);
    row_bytes_ = kernels.prepared_bytes(format, inputs);
    rows_ = zeros(kMostRows * row_bytes_);
    const std::vector<float> x = some_rows(numbers, inputs);
    kernels.prepare(format, x.data(), inputs, kMostRows, inputs, rows_.get());
    scratch_ = zeros(kernels.gemm_scratch(matrix_));
  }

  bool are_equal() {
    std::vector<float> alone(kMostRows * kOutputs), together = alone;
    for (int row = 0; row < kMostRows; ++row) multiply(row, 1, alone.data() + row * kOutputs);
    for (int rows : kRowCounts) {
      multiply(0, rows, together.data());
      for (int at = 0; at < rows * kOutputs; ++at)
        if (differ(together[at], alone[at])) return false;
    }
    return true;
  }

 private:
  void multiply(int first, int rows, float* out) {
    Epilogue epilogue;
    epilogue.out = out;
    epilogue.out_stride = kOutputs;
    kernels_.gemm(matrix_, rows_.get() + first * row_bytes_, rows, 0,
                  (kOutputs + kPanel - 1) / kPanel, scratch_.get(), epilogue,
                  kDefaultAhead);
  }

  // Packing puts a zero there.
  void clear_beside_last_input(int panels) {
    for (int panel = 1; panel <= panels; ++panel) {
      uint8_t* end = weights_.get() + panel * matrix_.panel_bytes;
      for (uint8_t* pair = end - kPanel * 4; pair < end; pair += 4) std::memset(pair + 2, 0, 2);
    }
  }

  // The bits of NaN are of no consequence.
  static bool differ(float one, float other) {
    return !(one != one && other != other) && float_to_bits(one) != float_to_bits(other);
  }

  const KernelTable& kernels_;
  Matrix matrix_;
  Bytes weights_, rows_, scratch_;
  size_t row_bytes_;
};

}  // namespace

std::string wrong_products(const KernelTable& kernels) {
  for (int number = static_cast<int>(Format::BF16); number < kFormats; ++number) {
    const auto format = static_cast<Format>(number);
    if (RandomProducts(kernels, format).are_equal()) continue;
    const std::string numbers = multiplies_bf16(format) ? "bf16 numbers" : "integers";
    return "its products of " + numbers + " (format " + std::to_string(number) +
           ") have other bits for many rows than for one";
  }
  return "";
}

}  // namespace octavo
