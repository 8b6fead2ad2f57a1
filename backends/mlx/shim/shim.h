// The C face of MLX that `src/ffi.rs` loads: each function of MLX's C++ API that the backend uses,
// under a name that can be looked up at run time. Signatures here and in `ffi.rs`, and the numbers
// of operations here and in `array.rs`, must agree: the build makes LQ_ABI of all these files, and
// a shim of other ones is refused.
//
// A call that makes an array returns it, owned by the caller, or null; one that makes none returns
// true or false. After null or false `lq_error` has the reason until the thread's next call.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mlx::core {
class array;
struct Stream;
}  // namespace mlx::core

using Array = mlx::core::array;
using Stream = mlx::core::Stream;

// Dimensions of an array, or a position in one.
struct Dims {
  const int32_t* data;
  size_t len;
};

struct Arrays {
  const Array* const* data;
  size_t len;
};

// How a quantized matrix is packed. `mode` is MLX's own name for it.
struct Packing {
  int32_t group;
  int32_t bits;
  const char* mode;
};

struct Bytes {
  const uint8_t* data;
  size_t len;
};

struct Parts {
  const Bytes* data;
  size_t len;
};

struct Text {
  const char* data;
  size_t len;
};
