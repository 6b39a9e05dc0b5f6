#include "python/src/sim_network.h"

#include "sim/torch/alias.h"
#include "sim/torch/sim.h"

#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

namespace swapline::python {
namespace {

struct Header {
  int64_t begin;
  int64_t num_bytes;
};

double factor_of(const c10d::ReduceOp& op) {
  const auto* given = static_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK(given != nullptr, "PREMUL_SUM without a factor");
  return given->tensor_factor.defined() ? given->tensor_factor.item<double>()
                                        : given->double_factor;
}

size_t payload_bytes(const at::Tensor& tensor) {
  return sim::simulator().is_dry_run() ? 0 : tensor.nbytes();
}

}  // namespace

int check_tensors(const char* op,
                  const std::vector<at::Tensor>& tensors,
                  const std::vector<at::Tensor>& more) {
  int device = -1;
  for (const auto* list : {&tensors, &more}) {
    for (const at::Tensor& tensor : *list) {
      TORCH_CHECK(
          sim::is_on_device(tensor) && tensor.layout() == at::kStrided && tensor.is_contiguous(),
          op,
          " of the backend \"swapline\" takes contiguous tensors of a simulated device; "
          "got one of shape ",
          tensor.sizes(),
          " and strides ",
          tensor.strides(),
          " on ",
          tensor.device());
      TORCH_CHECK(device == -1 || device == tensor.device().index(),
                  op,
                  " takes tensors of one device; got some of sim:",
                  device,
                  " and of ",
                  tensor.device());
      device = tensor.device().index();
    }
  }
  TORCH_CHECK(device != -1, op, " was given no tensor");
  return device;
}

ExchangeRequest request_of(c10d::OpType type,
                           const char* name,
                           std::vector<at::Tensor> reads,
                           std::vector<at::Tensor> writes) {
  ExchangeRequest request{type, name, check_tensors(name, reads, writes)};
  request.reads = std::move(reads);
  request.writes = std::move(writes);
  return request;
}

sim::Nanos transfer_time(size_t num_bytes) {
  const sim::DeviceSpec& spec = sim::simulator().options().spec;
  return spec.peer_latency +
         std::llround(static_cast<double>(num_bytes) / spec.peer_bytes_per_s * 1e9);
}

void check_message(const char* op, const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK(tensors.size() == 1, op, " takes one tensor; got ", tensors.size());
}

std::vector<at::Tensor> flat(const std::vector<std::vector<at::Tensor>>& lists) {
  std::vector<at::Tensor> all;
  for (const auto& list : lists) {
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

size_t total_bytes(const std::vector<at::Tensor>& tensors) {
  size_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    bytes += tensor.nbytes();
  }
  return bytes;
}

c10::Storage Loan::lend(const c10::Storage& storage) {
  lent_->push_back(storage);
  auto* holder = new std::shared_ptr<Lent>(lent_);
  c10::DataPtr data(
      storage.unsafeGetStorageImpl()->mutable_data(),
      holder,
      [](void* held) { delete static_cast<std::shared_ptr<Lent>*>(held); },
      c10::kCPU);
  return {c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(data)};
}

at::Tensor Loan::bytes_of(const at::Tensor& tensor) {
  at::Tensor bytes =
      at::detail::make_tensor<c10::TensorImpl>(lend(tensor.storage()),
                                               c10::DispatchKeySet(c10::DispatchKey::CPU),
                                               caffe2::TypeMeta::Make<uint8_t>());
  const auto itemsize = static_cast<int64_t>(tensor.itemsize());
  const std::array<int64_t, 1> size{tensor.numel() * itemsize};
  const std::array<int64_t, 1> stride{1};
  bytes.unsafeGetTensorImpl()->set_sizes_and_strides(
      c10::IntArrayRef(size), c10::IntArrayRef(stride), tensor.storage_offset() * itemsize);
  return bytes;
}

std::vector<at::Tensor> Loan::bytes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> bytes;
  for (const at::Tensor& tensor : tensors) {
    bytes.push_back(bytes_of(tensor));
  }
  return bytes;
}

std::vector<std::vector<at::Tensor>> Loan::bytes_of(
    const std::vector<std::vector<at::Tensor>>& lists) {
  std::vector<std::vector<at::Tensor>> bytes;
  for (const auto& list : lists) {
    bytes.push_back(bytes_of(list));
  }
  return bytes;
}

std::vector<at::Tensor> Loan::values_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& tensor : tensors) {
    values.push_back(sim::alias_tensor(tensor, lend(tensor.storage())));
  }
  return values;
}

c10d::ReduceOp without_factor(const c10d::ReduceOp& op) {
  return op.op_ == c10d::ReduceOp::PREMUL_SUM ? c10d::ReduceOp(c10d::ReduceOp::SUM) : op;
}

void scale_in_place(const std::vector<at::Tensor>& values, const c10d::ReduceOp& op) {
  if (op.op_ == c10d::ReduceOp::PREMUL_SUM) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    for (const at::Tensor& each : values) {
      at::Tensor(each).mul_(factor_of(op));
    }
  }
}

std::vector<at::Tensor> scaled(std::vector<at::Tensor> values, const c10d::ReduceOp& op) {
  if (op.op_ == c10d::ReduceOp::PREMUL_SUM) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    for (at::Tensor& each : values) {
      each = each.mul(factor_of(op));
    }
  }
  return values;
}

std::vector<int64_t> splits_in_bytes(const at::Tensor& tensor,
                                     const std::vector<int64_t>& splits,
                                     int num_ranks) {
  TORCH_CHECK(splits.empty() || static_cast<int>(splits.size()) == num_ranks,
              "all_to_all takes a split for each of the ",
              num_ranks,
              " ranks; got ",
              splits.size());
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  int64_t given = 0;
  for (const int64_t split : splits) {
    given += split;
  }
  TORCH_CHECK(splits.empty() ? rows % num_ranks == 0 : given == rows,
              "all_to_all: a tensor of ",
              rows,
              " rows cannot be split into ",
              splits.empty() ? "equal shares" : "the given ones",
              " for ",
              num_ranks,
              " ranks");
  const int64_t row_bytes = rows == 0 ? 0 : static_cast<int64_t>(tensor.nbytes()) / rows;
  std::vector<int64_t> bytes(num_ranks, rows / num_ranks * row_bytes);
  for (size_t rank = 0; rank < splits.size(); ++rank) {
    bytes[rank] = splits[rank] * row_bytes;
  }
  return bytes;
}

at::Tensor empty_message(const at::Tensor& tensor) {
  return at::empty({static_cast<int64_t>(sizeof(Header) + payload_bytes(tensor))}, at::kByte);
}

at::Tensor pack(const at::Tensor& tensor, sim::Nanos begin) {
  at::Tensor message = empty_message(tensor);
  auto* bytes = message.mutable_data_ptr<uint8_t>();
  const Header header{begin, static_cast<int64_t>(tensor.nbytes())};
  std::memcpy(bytes, &header, sizeof header);
  if (const size_t payload = payload_bytes(tensor); payload > 0) {
    std::memcpy(bytes + sizeof header, tensor.const_data_ptr(), payload);
  }
  return message;
}

sim::Nanos unpack(const at::Tensor& message, const at::Tensor& tensor) {
  const auto* bytes = message.const_data_ptr<uint8_t>();
  Header header{};
  std::memcpy(&header, bytes, sizeof header);
  TORCH_CHECK(header.num_bytes == static_cast<int64_t>(tensor.nbytes()),
              "recv: the sender sent ",
              header.num_bytes,
              " bytes, and the tensor of shape ",
              tensor.sizes(),
              " to receive them holds ",
              tensor.nbytes());
  if (const size_t payload = payload_bytes(tensor); payload > 0) {
    std::memcpy(tensor.mutable_data_ptr(), bytes + sizeof header, payload);
  }
  return header.begin;
}

}  // namespace swapline::python
