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

/* What this header describes. Later versions of the library with the same
 * number add functions, and members at the end of structs; nothing else. */
#define SHARDINIT_ABI_VERSION 1

#define SHARDINIT_API __attribute__((visibility("default")))

/* The exit statuses of shardinit(1), as far as they can occur here. */
typedef enum shardinit_status {
  SHARDINIT_OK = 0,
  SHARDINIT_ERROR_USAGE = 2, /* An invalid spec or argument. */
  SHARDINIT_ERROR_WORLD = 3, /* No memory, no permission: may go well later. */
  SHARDINIT_ERROR_BUG = 70   /* A bug in shardinit. */
} shardinit_status;

/* A spec that is open. */
typedef struct shardinit_spec shardinit_spec;

/* What to open. Members that are zero or NULL are not given; so initialize it by
 *   shardinit_source source = {.struct_size = sizeof source, .path = "model.yaml"};
 */
typedef struct shardinit_source {
  size_t struct_size; /* sizeof(shardinit_source). */
  /* A file. With `text`, only its name: in messages, and its folder is where
   * `include` looks. */
  const char* path;
  const char* text; /* The spec itself, `text_size` bytes of YAML. */
  size_t text_size;
  const char* const* sets; /* `set_count` overrides, as `--set` takes them: */
  size_t set_count;        /* "seed=7"; later ones win. */
  const char* mesh;        /* As `--mesh` takes it: "fsdp=8,tensor=4". */
  const char* layout;      /* As `--layout` takes it; then the tensors are its own. */
} shardinit_source;

/* A spec as a whole. */
typedef struct shardinit_info {
  const char* name;
  const char* engine; /* Of random numbers. */
  int64_t seed;
  int64_t parameters; /* Elements of all tensors, */
  int64_t bytes;      /* and their bytes. */
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
  const int64_t* shape; /* Of the whole tensor. */
  int64_t elements;
  int64_t bytes;
  /* For each dimension the mesh axes that by it, the major one first,
   * separated by commas: "fsdp,tensor"; "" if it is whole on every rank. */
  const char* const* partition;
} shardinit_tensor;

/* Opens and checks a spec: *spec is to be closed by shardinit_close(). */
SHARDINIT_API shardinit_status shardinit_open(const shardinit_source* source, shardinit_spec** spec,
                                              char** message);

/* NULL is allowed. */
SHARDINIT_API void shardinit_close(shardinit_spec* spec);

SHARDINIT_API const shardinit_info* shardinit_describe(const shardinit_spec* spec);

/* Tensors are numbered from 0 in the order of the spec. NULL: there is no such
 * tensor. */
SHARDINIT_API const shardinit_tensor* shardinit_tensor_at(const shardinit_spec* spec,
                                                          int64_t index);

/* The number of a tensor; -1 if the spec has none of this path. */
SHARDINIT_API int64_t shardinit_find(const shardinit_spec* spec, const char* path);

/* Writes the elements offset[d] <= i[d] < offset[d] + shape[d] of tensor
 * `index` to `out`, in row-major order, little-endian: the bits that `shardinit
 * gen` stores.
 *
 * `offset` and `shape` have one number per dimension; both NULL mean the whole
 * tensor. `out` is aligned to the size of an element and has exactly `out_size`
 * bytes, those of the part. `threads` work on it; 0: one for each core that the
 * process may use. The values do not depend on their number. */
SHARDINIT_API shardinit_status shardinit_fill(const shardinit_spec* spec, int64_t index,
                                              const int64_t* offset, const int64_t* shape,
                                              void* out, size_t out_size, int32_t threads,
                                              char** message);

/* Releases a message; NULL is allowed. */
SHARDINIT_API void shardinit_free(char* message);

/* Of the library that is linked: its version, as "1.2.3"; SHARDINIT_ABI_VERSION;
 * and the version of the contract of values, shardinit-values(7). */
SHARDINIT_API const char* shardinit_version(void);
SHARDINIT_API int32_t shardinit_abi_version(void);
SHARDINIT_API int32_t shardinit_contract_version(void);

#ifdef __cplusplus
}
#endif

#endif /* SHARDINIT_H_ */
