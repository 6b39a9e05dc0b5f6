// Copies between the host, the device and its peers. Between memories only plain bytes travel;
// dtype and layout are changed on the device, on either side of the link.
#include "sim/torch/launch.h"
#include "sim/torch/runtime.h"
#include "sim/torch/sim.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/library.h>

namespace swapline::sim {
namespace {

int side(const at::Tensor& tensor) {
  return is_on_device(tensor) ? tensor.device().index() : kHost;
}

// The bytes of both tensors mean the same, element by element, and have no gaps.
bool is_plain_copy(const at::Tensor& src, const at::Tensor& dst) {
  return src.scalar_type() == dst.scalar_type() && src.sizes() == dst.sizes() &&
         src.strides() == dst.strides() && src.is_non_overlapping_and_dense() &&
         src.is_conj() == dst.is_conj() && src.is_neg() == dst.is_neg();
}

// Makes the current stream of one device wait for that of another.
void order_streams(int device, int waiting) {
  const auto event = simulator().record(device, current_stream(device));
  simulator().wait(waiting, current_stream(waiting), *event);
}

void copy_bytes(const at::Tensor& src, const at::Tensor& dst, bool non_blocking) {
  const int index = side(dst) != kHost ? side(dst) : side(src);
  for (const at::Tensor* tensor : {&src, &dst}) {
    if (is_on_device(*tensor)) {
      access_of(*tensor, tensor == &dst, "copy_");  // is it there?
    }
  }
  const bool is_peer_copy = side(src) != kHost && side(dst) != kHost && side(src) != side(dst);
  const char* name = side(src) == kHost ? "copy in" : side(dst) == kHost ? "copy out" : "copy_";
  const int stream_device = is_peer_copy ? side(src) : index;
  if (is_peer_copy) {
    order_streams(side(dst), side(src));  // the destination is free to be written
  }
  try {
    simulator().copy(stream_device,
                     current_stream(stream_device),
                     {side(src),
                      src.const_data_ptr(),
                      side(dst),
                      dst.mutable_data_ptr(),
                      dst.nbytes(),
                      non_blocking,
                      name});
  } catch (const CopyError& error) {
    TORCH_CHECK(false, "sim: ", error.what());
  }
  if (is_peer_copy) {
    order_streams(side(src), side(dst));  // and then filled
  }
}

void copy_on_device(const at::Tensor& src, const at::Tensor& dst) {
  Launch launch("aten::copy_", side(dst));
  const at::Tensor from = launch.in(src);
  at::Tensor to = launch.overwritten(dst);
  launch.begin();
  if (!launch.is_dry()) {
    to.copy_(from);
  }
  launch.end();
}

at::Tensor dense_like(const at::Tensor& shape_from, const at::Tensor& options_from, int where) {
  auto options = at::TensorOptions().dtype(options_from.dtype());
  options = where == kHost ? options.device(c10::kCPU) : options.device(device(where));
  return at::empty(shape_from.sizes(), options);
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  const int from = side(self);
  const int to = side(dst);
  if (dst.numel() == 0) {
    return dst;
  }
  if (from == to) {
    copy_on_device(self, dst);
    return dst;
  }
  const at::Tensor source = self.sizes() == dst.sizes() ? self : self.expand(dst.sizes());
  if (is_plain_copy(source, dst)) {
    copy_bytes(source, dst, non_blocking);
    return dst;
  }
  // The dtype is changed where the source is, the layout on either side.
  at::Tensor packed = source;
  if (source.scalar_type() != dst.scalar_type() || !source.is_contiguous() || source.is_conj() ||
      source.is_neg()) {
    packed = dense_like(source, dst, from);
    packed.copy_(source);
  }
  if (is_plain_copy(packed, dst)) {
    copy_bytes(packed, dst, non_blocking && packed.is_same(source));
    return dst;
  }
  const at::Tensor landed = dense_like(dst, dst, to);
  copy_bytes(packed, landed, false);
  at::Tensor(dst).copy_(landed);
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  dst.resize_(self.sizes());
  return copy_from(self, dst, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  const at::Tensor host = at::empty({}, at::TensorOptions().dtype(self.dtype()));
  copy_bytes(self.is_conj() || self.is_neg() ? self.clone() : self, host, false);
  return simulator().is_dry_run() ? at::Scalar(0) : at::_local_scalar_dense(host);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
}

// A lazily conjugated or negated tensor is copied as it is; resolving it first would copy again.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace
}  // namespace swapline::sim
