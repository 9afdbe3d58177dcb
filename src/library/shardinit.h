/* libshardinit: the initial values of a large model, any part of any tensor,
 * straight into memory. See libshardinit(3) for an example.
 *
 * Results. Functions that can fail return a shardinit_status. If `message` is
 * not NULL they also store a text there: NULL after success, else what the
 * command `shardinit` would print, lines of UTF-8 that end in a newline, to be
 * released by shardinit_free() (it is NULL too if there was no memory for it).
 * Nothing else is changed by a call that fails, except that memory to be
 * filled may be filled in part.
 *
 * Ownership. What is returned as a pointer to const belongs to the spec, never
 * changes, and lives until shardinit_close(). Arguments are not kept.
 *
 * Threads. Any functions may be called at once from any threads, on one spec
 * too; shardinit_close() is the last call on its spec. Threads that
 * shardinit_fill() starts get no signals and have ended when it returns.
 *
 * The library prints nothing, never ends the process, handles no signals, and
 * does not depend on locale, rounding mode, flushing of subnormal numbers or
 * environment variables. A thread must not be cancelled inside of it.
 */
#ifndef SHARDINIT_H_
#define SHARDINIT_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the interface in this header. Later versions of the library with
 * the same number only add functions, and members at the end of structs. */
#define SHARDINIT_ABI_VERSION 1

#define SHARDINIT_API __attribute__((visibility("default")))

/* The exit statuses of shardinit(1), as far as they can occur here. */
typedef enum shardinit_status {
  SHARDINIT_OK = 0,
  SHARDINIT_ERROR_USAGE = 2, /* An invalid spec or argument. */
  SHARDINIT_ERROR_WORLD = 3, /* No memory, no permission: may go well later. */
  SHARDINIT_ERROR_BUG = 70   /* A bug in shardinit. */
} shardinit_status;

/* An open spec. */
typedef struct shardinit_spec shardinit_spec;

/* What to open. Members that are zero or NULL count as not given; so initialize it by
 *   shardinit_source source = {.struct_size = sizeof source, .path = "model.yaml"};
 */
typedef struct shardinit_source {
  size_t struct_size; /* sizeof(shardinit_source). */
  /* The path of the spec's file. With `text`, this only gives messages a name, and
   * `include` a folder to look in. */
  const char* path;
  const char* text; /* The spec itself, `text_size` bytes of YAML. */
  size_t text_size;
  const char* const* sets; /* `set_count` overrides, as `--set` takes them: */
  size_t set_count;        /* "seed=7"; later ones win. */
  const char* mesh;        /* the argument of `--mesh`: "fsdp=8,tensor=4" */
  const char* layout;      /* the argument of `--layout`, whose tensors then count */
} shardinit_source;

/* A spec as a whole. */
typedef struct shardinit_info {
  const char* name;
  const char* engine; /* the engine of random numbers */
  uint64_t seed;
  int64_t parameters; /* Elements of all tensors but buffers. */
  int64_t bytes;      /* Bytes of all tensors. */
  int64_t tensor_count;
  int32_t mesh_dimensions;
  const char* const* mesh_axes; /* Their names; the last varies fastest. */
  const int64_t* mesh_shape;
  const char* warnings; /* Found in the spec, as a message; "" if none. */
} shardinit_info;

typedef struct shardinit_tensor {
  const char* path;  /* "model.layers.0.mlp.up_proj.weight" */
  const char* dtype; /* "f32", "f64", "bf16", "f16": shardinit-format(5). */
  int32_t element_bytes;
  int32_t dimensions;
  const int64_t* shape; /* the shape of the whole tensor */
  int64_t elements;
  int64_t bytes;
  /* For each dimension, the mesh axes that shard it, the major one first,
   * separated by commas: "fsdp,tensor"; "" if it is whole on every rank. This
   * leaves out segments, nested axes and stages: see shardinit_boxes(). */
  const char* const* partition;
  int32_t extended; /* 1 if `partition` leaves out any of these, else 0 */
} shardinit_tensor;

/* Opens and checks a spec. Close *spec with shardinit_close(). */
SHARDINIT_API shardinit_status shardinit_open(const shardinit_source* source, shardinit_spec** spec,
                                              char** message);

/* Closes a spec; NULL is allowed. */
SHARDINIT_API void shardinit_close(shardinit_spec* spec);

SHARDINIT_API const shardinit_info* shardinit_describe(const shardinit_spec* spec);

/* Returns a tensor by its number. Tensors are numbered from 0 in the order of the
 * spec. Returns NULL if there is no such tensor. */
SHARDINIT_API const shardinit_tensor* shardinit_tensor_at(const shardinit_spec* spec,
                                                          int64_t index);

/* Returns the number of a tensor, or -1 if the spec has none with this path. */
SHARDINIT_API int64_t shardinit_find(const shardinit_spec* spec, const char* path);

/* Writes the elements offset[d] <= i[d] < offset[d] + shape[d] of tensor
 * `index` to `out`, in row-major order, little-endian: the bits that `shardinit
 * gen` stores.
 *
 * `offset` and `shape` have one number per dimension; both NULL mean the whole
 * tensor. `out` is aligned to the size of an element and has exactly `out_size`
 * bytes, those of the part. `threads` is the number of threads; 0 means one for each
 * core that the process may use. The values do not depend on it. */
SHARDINIT_API shardinit_status shardinit_fill(const shardinit_spec* spec, int64_t index,
                                              const int64_t* offset, const int64_t* shape,
                                              void* out, size_t out_size, int32_t threads,
                                              char** message);

/* Does what shardinit_fill() does, in the memory of a CUDA device, by kernels of that device:
 * `out` is an address of the device, and `stream` a CUstream (a cudaStream_t), or NULL for the
 * default one. The elements are there when the stream's work has come so far; the function does
 * not wait for it. The current context of the thread stays current, and is used if it is one of
 * that device; else its primary context is.
 *
 * *made becomes 1, or 0 if nothing was done because no kernel makes values of this tensor there:
 * then fill memory of the host, and copy that. Kernels make constants, and uniform, normal and
 * truncated normal numbers of the engines `philox4x32` and `jax_threefry`, on devices of compute
 * capability 8.0 or more, if their driver compiles PTX and the library was built with kernels. */
SHARDINIT_API shardinit_status shardinit_fill_cuda(const shardinit_spec* spec, int64_t index,
                                                   const int64_t* offset, const int64_t* shape,
                                                   void* out, size_t out_size, void* stream,
                                                   int32_t* made, char** message);

/* Finds the boxes of tensor `index` that `rank` of the spec's mesh holds. *count becomes their
 * number: 0 if the rank has nothing of the tensor, several if it has segments. Side by side along
 * each dimension, in this order, they are the rank's local tensor. `offsets` and `shapes` get
 * those of the first `capacity` boxes, with one number per dimension each. */
SHARDINIT_API shardinit_status shardinit_boxes(const shardinit_spec* spec, int64_t index,
                                               int64_t rank, int64_t* offsets, int64_t* shapes,
                                               int64_t capacity, int64_t* count, char** message);

/* Releases a message; NULL is allowed. */
SHARDINIT_API void shardinit_free(char* message);

/* These describe the linked library: its version, as "1.2.3"; its SHARDINIT_ABI_VERSION;
 * and its version of the contract of values, shardinit-values(7). */
SHARDINIT_API const char* shardinit_version(void);
SHARDINIT_API int32_t shardinit_abi_version(void);
SHARDINIT_API int32_t shardinit_contract_version(void);

#ifdef __cplusplus
}
#endif

#endif /* SHARDINIT_H_ */
