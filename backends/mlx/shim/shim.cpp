#include "shim.h"

#include <mlx/backend/cuda/cuda.h>
#include <mlx/mlx.h>
#include <mlx/version.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace mx = mlx::core;

namespace {

// Products of float32 are products of float32: MLX reads this once, at the first of them, and
// would else round the factors to ten bits where the GPU is faster so.
[[maybe_unused]] const int exact = setenv("MLX_ENABLE_TF32", "0", 0);

thread_local std::string last_error;

void remember(const char* what) noexcept {
  try {
    last_error = what;
  } catch (...) {
    last_error.clear();
  }
}

// Runs `body`; an exception becomes `failed` and the thread's last error.
template <typename T, typename Body>
T guard(T failed, Body&& body) noexcept {
  try {
    return body();
  } catch (const std::exception& error) {
    remember(error.what());
  } catch (...) {
    remember("an exception that is no std::exception");
  }
  return failed;
}

// MLX's CPU does not ask whether it got the memory before it writes, and takes its limit for a
// wish. An array beyond the whole limit is a mistake wherever it comes from.
void check_size(size_t bytes) {
  if (size_t limit = mx::get_memory_limit(); bytes > limit) {
    throw std::runtime_error(
        "unable to allocate " + std::to_string(bytes) + " bytes, the limit is " +
        std::to_string(limit));
  }
}

template <typename Body>
Array* make(Body&& body) noexcept {
  return guard<Array*>(nullptr, [&] {
    Array array = body();
    check_size(array.nbytes());
    return new Array(std::move(array));
  });
}

template <typename Body>
bool perform(Body&& body) noexcept {
  return guard(false, [&] {
    body();
    return true;
  });
}

mx::Shape shape(Dims dims) {
  return mx::Shape(dims.data, dims.data + dims.len);
}

std::vector<int> axes(Dims dims) {
  return std::vector<int>(dims.data, dims.data + dims.len);
}

std::vector<Array> list(Arrays arrays) {
  std::vector<Array> out;
  out.reserve(arrays.len);
  for (size_t i = 0; i < arrays.len; i++) {
    out.push_back(*arrays.data[i]);
  }
  return out;
}

std::optional<Array> maybe(const Array* array) {
  return array ? std::optional<Array>(*array) : std::nullopt;
}

mx::Dtype dtype(uint32_t code) {
  switch (code) {
    case 0:
      return mx::float32;
    case 1:
      return mx::float16;
    case 2:
      return mx::bfloat16;
    case 3:
      return mx::uint32;
    case 4:
      return mx::int32;
    case 5:
      return mx::uint8;
    case 6:
      return mx::bool_;
  }
  throw std::invalid_argument("unknown dtype code " + std::to_string(code));
}

uint32_t dtype_code(mx::Dtype wanted) {
  for (uint32_t code = 0; code <= 6; code++) {
    if (dtype(code) == wanted) {
      return code;
    }
  }
  throw std::invalid_argument("a dtype that the backend does not use");
}

mx::Device device(uint32_t kind) {
  return mx::Device(kind == 0 ? mx::Device::cpu : mx::Device::gpu);
}

using Inputs = std::vector<Array>;
using Function = std::function<Inputs(const Inputs&)>;

Array same(float value, const Array& like) {
  return Array(value, like.dtype());
}

Array silu(const Array& x) {
  return x * mx::sigmoid(x);
}

Array gelu(const Array& x) {
  return x * (same(1.0f, x) + mx::erf(x * same(0.70710678f, x))) * same(0.5f, x);
}

Array gelu_tanh(const Array& x) {
  Array inner = same(0.79788456f, x) * (x + same(0.044715f, x) * x * x * x);
  return same(0.5f, x) * x * (same(1.0f, x) + mx::tanh(inner));
}

Array quick_gelu(const Array& x) {
  return x * mx::sigmoid(same(1.702f, x) * x);
}

Array softplus(const Array& x) {
  return mx::logaddexp(x, same(0.0f, x));
}

Array sum_of_products(const Inputs& in, size_t from) {
  Array total = in.at(from) * in.at(from + 1);
  size_t at = from + 2;
  for (; at + 1 < in.size(); at += 2) {
    total = total + in[at] * in[at + 1];
  }
  return at < in.size() ? total + in[at] : total;
}

// Elementwise functions that are worth one kernel instead of several.
const Function& fused(uint32_t kind) {
  static const std::vector<Function> table = {
      mx::compile([](const Inputs& in) -> Inputs { return {silu(in[0]) * in[1]}; }, true),
      mx::compile([](const Inputs& in) -> Inputs { return {gelu(in[0]) * in[1]}; }, true),
      mx::compile([](const Inputs& in) -> Inputs { return {gelu_tanh(in[0]) * in[1]}; }, true),
      mx::compile([](const Inputs& in) -> Inputs { return {silu(in[0])}; }, true),
      mx::compile([](const Inputs& in) -> Inputs { return {gelu(in[0])}; }, true),
      mx::compile([](const Inputs& in) -> Inputs { return {gelu_tanh(in[0])}; }, true),
      // gate, up, alpha, limit
      mx::compile(
          [](const Inputs& in) -> Inputs {
            Array gate = mx::minimum(in[0], in[3]);
            Array up = mx::minimum(mx::maximum(in[1], -in[3]), in[3]);
            return {gate * mx::sigmoid(in[2] * gate) * (up + same(1.0f, up))};
          },
          true),
      // value, gate
      mx::compile([](const Inputs& in) -> Inputs { return {in[0] * mx::sigmoid(in[1])}; }, true),
      mx::compile([](const Inputs& in) -> Inputs { return {in[0] * silu(in[1])}; }, true),
      // value, cap
      mx::compile([](const Inputs& in) -> Inputs { return {mx::tanh(in[0] / in[1]) * in[1]}; }, true),
      // max(x, 0)²
      mx::compile(
          [](const Inputs& in) -> Inputs {
            return {mx::square(mx::maximum(in[0], same(0.0f, in[0])))};
          },
          true),
      mx::compile(
          [](const Inputs& in) -> Inputs { return {mx::maximum(in[0], same(0.0f, in[0]))}; }, true),
      // value, total, and what the total is raised and the quotient multiplied by
      mx::compile(
          [](const Inputs& in) -> Inputs { return {in[0] / (in[1] + in[2]) * in[3]}; }, true),
      // a * b + c * d + ..., and an odd one at the end as it is
      mx::compile([](const Inputs& in) -> Inputs { return {sum_of_products(in, 0)}; }, true),
      mx::compile([](const Inputs& in) -> Inputs { return {silu(sum_of_products(in, 0))}; }, true),
      // factor, then as above; the answer is of the factor's type
      mx::compile(
          [](const Inputs& in) -> Inputs {
            return {mx::astype(in[0] * sum_of_products(in, 1), in[0].dtype())};
          },
          true),
      // input, bias, rate
      mx::compile(
          [](const Inputs& in) -> Inputs { return {in[2] * softplus(in[0] + in[1])}; }, true),
      // input, scale, bias, lower and upper limit
      mx::compile(
          [](const Inputs& in) -> Inputs {
            return {mx::minimum(mx::maximum(softplus(in[0] * in[1] + in[2]), in[3]), in[4])};
          },
          true),
      mx::compile([](const Inputs& in) -> Inputs { return {in[0] * mx::exp(in[1])}; }, true),
      // memory, logarithm of its decay, and the two whose product is added
      mx::compile(
          [](const Inputs& in) -> Inputs { return {in[0] * mx::exp(in[1]) + in[2] * in[3]}; }, true),
      // wanted, there, share before its sigmoid
      mx::compile(
          [](const Inputs& in) -> Inputs {
            return {(in[0] - in[1]) * mx::sigmoid(mx::astype(in[2], in[0].dtype()))};
          },
          true),
      // to, from, mask, and perhaps a factor
      mx::compile(
          [](const Inputs& in) -> Inputs {
            Array decay = mx::exp(in[0] - in[1] + in[2]);
            return {in.size() > 3 ? decay * in[3] : decay};
          },
          true),
      mx::compile([](const Inputs& in) -> Inputs { return {quick_gelu(in[0])}; }, true),
      mx::compile([](const Inputs& in) -> Inputs { return {quick_gelu(in[0]) * in[1]}; }, true),
  };
  return table.at(kind);
}

}  // namespace

extern "C" {

uint64_t lq_abi() {
  return LQ_ABI;
}

Text lq_version() {
  const char* version = mx::version();
  return {version, std::strlen(version)};
}

Text lq_error() {
  return {last_error.data(), last_error.size()};
}

// Devices

bool lq_device_available(uint32_t kind) {
  return guard(false, [&] { return mx::is_available(device(kind)); });
}

// The device's name and its memory in bytes, 0 where it does not tell. The text lives until the
// thread's next call.
Text lq_device_name(uint32_t kind, uint64_t* memory) {
  thread_local std::string name;
  return guard(Text{nullptr, 0}, [&] {
    const auto& info = mx::device_info(device(kind));
    name = "unnamed";
    *memory = 0;
    if (auto found = info.find("device_name"); found != info.end()) {
      name = std::get<std::string>(found->second);
    }
    for (const char* key : {"memory_size", "total_memory"}) {
      if (auto found = info.find(key); found != info.end() && *memory == 0) {
        *memory = std::get<size_t>(found->second);
      }
    }
    return Text{name.data(), name.size()};
  });
}

// A stream that any thread may use, one at a time.
Stream* lq_stream_new(uint32_t kind) {
  return guard<Stream*>(
      nullptr, [&] { return new Stream(mx::new_thread_unsafe_stream(device(kind))); });
}

bool lq_synchronize(const Stream* stream) {
  return perform([&] { mx::synchronize(*stream); });
}

// Memory

void lq_memory(uint64_t* active, uint64_t* cached, uint64_t* peak) {
  perform([&] {
    *active = mx::get_active_memory();
    *cached = mx::get_cache_memory();
    *peak = mx::get_peak_memory();
  });
}

bool lq_set_limits(uint64_t memory, uint64_t cache) {
  return perform([&] {
    mx::set_memory_limit(memory);
    mx::set_cache_limit(cache);
  });
}

uint64_t lq_memory_limit() {
  return guard<uint64_t>(0, [&] { return mx::get_memory_limit(); });
}

bool lq_set_wired_limit(uint64_t bytes) {
  return perform([&] { mx::set_wired_limit(bytes); });
}

bool lq_clear_cache() {
  return perform([&] { mx::clear_cache(); });
}

// Whether fused functions are compiled at run time, or run operation by operation.
void lq_set_compile(bool enabled) {
  perform([&] { enabled ? mx::enable_compile() : mx::disable_compile(); });
}

// Arrays

void lq_array_free(Array* array) {
  delete array;
}

Array* lq_array_clone(const Array* array) {
  return make([&] { return *array; });
}

size_t lq_array_dims(const Array* array) {
  return array->ndim();
}

int32_t lq_array_dim(const Array* array, size_t axis) {
  return axis < array->ndim() ? array->shape(static_cast<int>(axis)) : 0;
}

uint32_t lq_array_dtype(const Array* array) {
  return guard<uint32_t>(UINT32_MAX, [&] { return dtype_code(array->dtype()); });
}

// Copies the parts one after another, which must be as many bytes as shape and type ask for.
Array* lq_from_parts(Parts parts, Dims dims, uint32_t type) {
  return make([&] {
    size_t len = 0;
    for (size_t i = 0; i < parts.len; i++) {
      len += parts.data[i].len;
    }
    check_size(len);
    Array out(mx::allocator::malloc(len), shape(dims), dtype(type));
    if (out.nbytes() != len) {
      throw std::invalid_argument("the bytes are not as many as the shape asks for");
    }
    uint8_t* to = out.data<uint8_t>();
    if (!to && len > 0) {
      throw std::bad_alloc();
    }
    for (size_t i = 0; i < parts.len; i++) {
      std::memcpy(to, parts.data[i].data, parts.data[i].len);
      to += parts.data[i].len;
    }
    return out;
  });
}

// The same values for good: in the device's own memory where that is not the machine's.
Array* lq_settle(const Array* a, const Stream* s) {
  return make([&] {
    if (s->device != mx::Device::gpu || !mx::cu::is_available()) {
      return *a;
    }
    // A copy from the machine's memory is in CUDA's managed memory, a result is not. MLX's own
    // copying operations would only share it; this one cannot, since its input is still held.
    Array settled = mx::maximum(*a, *a, *s);
    mx::eval(std::vector<Array>{settled});
    return settled;
  });
}

Array* lq_full(Dims dims, float value, uint32_t type, const Stream* s) {
  return make([&] { return mx::full(shape(dims), value, dtype(type), *s); });
}

Array* lq_arange(int32_t start, int32_t stop, uint32_t type, const Stream* s) {
  return make([&] {
    return mx::arange(static_cast<double>(start), static_cast<double>(stop), 1.0, dtype(type), *s);
  });
}

bool lq_eval(Arrays arrays) {
  return perform([&] { mx::eval(list(arrays)); });
}

bool lq_async_eval(Arrays arrays) {
  return perform([&] { mx::async_eval(list(arrays)); });
}

// Evaluates and copies the values out in row-major order; `len` must be their size in bytes.
bool lq_read(const Array* array, uint8_t* out, size_t len, const Stream* s) {
  return perform([&] {
    Array whole = *array;
    whole.eval();
    if (!whole.flags().row_contiguous) {
      whole = mx::contiguous(whole, false, *s);
      whole.eval();
    }
    if (whole.nbytes() != len) {
      throw std::invalid_argument("the array has another size than asked for");
    }
    std::memcpy(out, whole.data<uint8_t>(), len);
  });
}

// Shapes

Array* lq_astype(const Array* a, uint32_t type, const Stream* s) {
  return make([&] { return mx::astype(*a, dtype(type), *s); });
}

Array* lq_reshape(const Array* a, Dims dims, const Stream* s) {
  return make([&] { return mx::reshape(*a, shape(dims), *s); });
}

Array* lq_transpose(const Array* a, Dims order, const Stream* s) {
  return make([&] { return mx::transpose(*a, axes(order), *s); });
}

Array* lq_broadcast_to(const Array* a, Dims dims, const Stream* s) {
  return make([&] { return mx::broadcast_to(*a, shape(dims), *s); });
}

Array* lq_slice(const Array* a, Dims start, Dims stop, const Stream* s) {
  return make([&] { return mx::slice(*a, shape(start), shape(stop), *s); });
}

Array* lq_slice_update(const Array* a, const Array* update, Dims start, Dims stop, const Stream* s) {
  return make([&] { return mx::slice_update(*a, *update, shape(start), shape(stop), *s); });
}

// Into `a` of [rows, heads, places, dim]: for each i what `update` [n, 1, heads, 1, dim] has there,
// at row `rows[i]` and place `places[i]`.
Array* lq_put_tokens(
    const Array* a,
    const Array* rows,
    const Array* places,
    const Array* update,
    const Stream* s) {
  return make([&] { return mx::scatter(*a, {*rows, *places}, *update, {0, 2}, *s); });
}

Array* lq_concatenate(Arrays arrays, int32_t axis, const Stream* s) {
  return make([&] { return mx::concatenate(list(arrays), axis, *s); });
}

Array* lq_contiguous(const Array* a, const Stream* s) {
  return make([&] { return mx::contiguous(*a, false, *s); });
}

Array* lq_take(const Array* a, const Array* indices, int32_t axis, const Stream* s) {
  return make([&] { return mx::take(*a, *indices, axis, *s); });
}

Array* lq_take_along_axis(const Array* a, const Array* indices, int32_t axis, const Stream* s) {
  return make([&] { return mx::take_along_axis(*a, *indices, axis, *s); });
}

Array* lq_put_along_axis(
    const Array* a,
    const Array* indices,
    const Array* values,
    int32_t axis,
    const Stream* s) {
  return make([&] { return mx::put_along_axis(*a, *indices, *values, axis, *s); });
}

// Arithmetic

Array* lq_unary(uint32_t op, const Array* a, const Stream* s) {
  return make([&] {
    switch (op) {
      case 0:
        return mx::exp(*a, *s);
      case 1:
        return mx::sigmoid(*a, *s);
      case 2:
        return mx::rsqrt(*a, *s);
    }
    throw std::invalid_argument("unknown unary operation");
  });
}

Array* lq_binary(uint32_t op, const Array* a, const Array* b, const Stream* s) {
  return make([&] {
    switch (op) {
      case 0:
        return mx::add(*a, *b, *s);
      case 1:
        return mx::subtract(*a, *b, *s);
      case 2:
        return mx::multiply(*a, *b, *s);
      case 3:
        return mx::minimum(*a, *b, *s);
      case 4:
        return mx::greater_equal(*a, *b, *s);
      case 5:
        return mx::logical_and(*a, *b, *s);
      case 6:
        return mx::floor_divide(*a, *b, *s);
      case 7:
        return mx::maximum(*a, *b, *s);
    }
    throw std::invalid_argument("unknown binary operation");
  });
}

// The number takes the array's type, so that it does not widen it.
Array* lq_scale(const Array* a, float factor, const Stream* s) {
  return make([&] { return mx::multiply(*a, Array(factor, a->dtype()), *s); });
}

Array* lq_select(const Array* condition, const Array* yes, const Array* no, const Stream* s) {
  return make([&] { return mx::where(*condition, *yes, *no, *s); });
}

Array* lq_reduce(uint32_t op, const Array* a, int32_t axis, bool keep, const Stream* s) {
  return make([&] {
    switch (op) {
      case 0:
        return mx::sum(*a, axis, keep, *s);
      case 1:
        return mx::max(*a, axis, keep, *s);
      case 2:
        return mx::argmax(*a, axis, keep, *s);
    }
    throw std::invalid_argument("unknown reduction");
  });
}

Array* lq_cumsum(const Array* a, int32_t axis, const Stream* s) {
  return make([&] { return mx::cumsum(*a, axis, false, true, *s); });
}

Array* lq_argpartition(const Array* a, int32_t kth, int32_t axis, const Stream* s) {
  return make([&] { return mx::argpartition(*a, kth, axis, *s); });
}

Array* lq_largest(const Array* a, int32_t count, int32_t axis, const Stream* s) {
  return make([&] { return mx::topk(*a, count, axis, *s); });
}

Array* lq_argsort(const Array* a, int32_t axis, const Stream* s) {
  return make([&] { return mx::argsort(*a, axis, *s); });
}

// In single precision inside, whatever the type.
Array* lq_softmax(const Array* a, int32_t axis, const Stream* s) {
  return make([&] { return mx::softmax(*a, axis, true, *s); });
}

// One of the table's functions; the stream is the default of the calling thread for the call,
// since compiled functions take none.
Array* lq_fused(uint32_t kind, Arrays inputs, const Stream* s) {
  return make([&] {
    auto before = mx::peek_default_stream(s->device);
    mx::set_default_stream(*s);
    mx::Device device_before = mx::default_device();
    mx::set_default_device(s->device);
    auto restore = [&] {
      mx::set_default_device(device_before);
      if (before) {
        mx::set_default_stream(*before);
      }
    };
    try {
      Array out = fused(kind)(list(inputs)).at(0);
      restore();
      return out;
    } catch (...) {
      restore();
      throw;
    }
  });
}

// Matrices

Array* lq_matmul(const Array* a, const Array* b, const Stream* s) {
  return make([&] { return mx::matmul(*a, *b, *s); });
}

Array* lq_addmm(const Array* c, const Array* a, const Array* b, const Stream* s) {
  return make([&] { return mx::addmm(*c, *a, *b, 1.0f, 1.0f, *s); });
}

Array* lq_quantized_matmul(
    const Array* x,
    const Array* codes,
    const Array* scales,
    const Array* biases,
    Packing packing,
    const Stream* s) {
  return make([&] {
    return mx::quantized_matmul(
        *x, *codes, *scales, maybe(biases), true, packing.group, packing.bits, packing.mode, *s);
  });
}

Array* lq_dequantize(
    const Array* codes,
    const Array* scales,
    const Array* biases,
    Packing packing,
    uint32_t type,
    const Stream* s) {
  return make([&] {
    return mx::dequantize(
        *codes,
        *scales,
        maybe(biases),
        packing.group,
        packing.bits,
        packing.mode,
        std::nullopt,
        dtype(type),
        *s);
  });
}

Array* lq_gather_matmul(
    const Array* x,
    const Array* stack,
    const Array* chosen,
    bool sorted,
    const Stream* s) {
  return make([&] { return mx::gather_mm(*x, *stack, std::nullopt, *chosen, sorted, *s); });
}

Array* lq_gather_quantized_matmul(
    const Array* x,
    const Array* codes,
    const Array* scales,
    const Array* biases,
    const Array* chosen,
    Packing packing,
    bool sorted,
    const Stream* s) {
  return make([&] {
    return mx::gather_qmm(
        *x,
        *codes,
        *scales,
        maybe(biases),
        std::nullopt,
        *chosen,
        true,
        packing.group,
        packing.bits,
        packing.mode,
        std::nullopt,
        sorted,
        *s);
  });
}

// Fast

Array* lq_rms_norm(const Array* x, const Array* weight, float eps, const Stream* s) {
  return make([&] { return mx::fast::rms_norm(*x, maybe(weight), eps, *s); });
}

Array* lq_layer_norm(
    const Array* x,
    const Array* weight,
    const Array* bias,
    float eps,
    const Stream* s) {
  return make([&] { return mx::fast::layer_norm(*x, maybe(weight), maybe(bias), eps, *s); });
}

// `periods` are the inverse of the angles per position; `offsets` has one position for each of
// the batch.
Array* lq_rope(
    const Array* x,
    int32_t dims,
    bool neighbours,
    const Array* offsets,
    const Array* periods,
    const Stream* s) {
  return make([&] {
    return mx::fast::rope(
        *x, dims, neighbours, std::nullopt, 1.0f, *offsets, std::optional<Array>(*periods), *s);
  });
}

// `mask`: null with `causal` false is none, null with `causal` true is MLX's own causal one.
Array* lq_attention(
    const Array* queries,
    const Array* keys,
    const Array* values,
    float scale,
    bool causal,
    const Array* mask,
    const Array* sinks,
    const Stream* s) {
  return make([&] {
    return mx::fast::scaled_dot_product_attention(
        *queries,
        *keys,
        *values,
        scale,
        causal ? "causal" : (mask ? "array" : ""),
        maybe(mask),
        maybe(sinks),
        false,
        *s);
  });
}

// The outputs; the state after the last token goes to `state_after`.
Array* lq_gated_delta(
    const Array* queries,
    const Array* keys,
    const Array* values,
    const Array* decay,
    const Array* beta,
    const Array* state,
    Array** state_after,
    const Stream* s) {
  return make([&] {
    auto out = mx::fast::gated_delta_update(
        *queries, *keys, *values, *decay, *beta, maybe(state), std::nullopt, *s);
    Array first = out.at(0);
    *state_after = new Array(out.at(1));
    return first;
  });
}

}  // extern "C"
