// SPDX-License-Identifier: Apache-2.0
// Convolution by oneDNN, for many channels and for geometries our own kernels do not take. This
// and dnnl.cpp are the only files that know the library. It opens its own parallel region: call it
// from one thread, outside ours.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/dtype.h"
#include "kernels/conv_reference.h"

namespace tessera::kernels {

enum class ConvDirection : uint8_t {
  kForward,     // y from x, w
  kInputGrad,   // x from y, w
  kWeightGrad,  // w from y, x
  kTransposed,  // as kInputGrad, but may add a bias
};

struct DnnlConvDesc {
  ConvDirection direction = ConvDirection::kForward;
  DType dtype = DType::F32;  // or BF16
  ConvShape shape;
  Strides5 x{}, w{}, y{};
  bool bias = false;
  // The caller's weights never change: the library's packed form is made in the first run and kept.
  bool keep_weights = false;
  // The same, in scratch that runs share until forget_weights().
  bool share_weights = false;
};

class DnnlConvolution {
 public:
  // Nothing if the library has no implementation. The number of threads is that of the caller's
  // OpenMP environment at this time.
  static std::unique_ptr<DnnlConvolution> make(const DnnlConvDesc& desc);
  ~DnnlConvolution();

  void forget_weights();          // the next run packs them anew
  int64_t scratch_bytes() const;  // 64-byte aligned memory that run() needs
  // Pointers in the naming of the forward direction; the one that is the result is written. The
  // object holds the pointers while it runs, so two runs at the same time need two objects.
  void run(void* x, void* w, const void* bias, void* y, std::byte* scratch);

 private:
  struct Parts;
  explicit DnnlConvolution(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace tessera::kernels
