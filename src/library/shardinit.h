/* libshardinit: generates any part of any tensor of a large model's initial
 * values in memory, or reads it from a folder. See libshardinit(3) for an example.
 *
 * Results. Functions that can fail return a shardinit_status. If `message` is
 * not NULL, they store a text in it: NULL after success, otherwise what the
 * command `shardinit` would print, as lines of UTF-8 that end in a newline.
 * Release the text with shardinit_free(). It is also NULL if memory for it was
 * exhausted. A call that fails changes nothing else, but may have filled a part
 * of the memory that it should fill.
 *
 * Ownership. Data behind a returned pointer to const belongs to the spec, never
 * changes, and is valid until shardinit_close(). Arguments are not kept.
 *
 * Threads. Any functions may be called from any threads at the same time, even
 * on one spec; shardinit_close() must be the last call on its spec. The threads
 * of shardinit_fill() receive no signals, and end before it returns.
 *
 * The library prints nothing, never ends the process, handles no signals, and
 * does not depend on locale, rounding mode, flushing of subnormal numbers or
 * environment variables. A thread must not be cancelled inside the library.
 */
#ifndef SHARDINIT_H_
#define SHARDINIT_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. Later library versions with the same number only
 * add functions, and members at the end of structs. */
#define SHARDINIT_ABI_VERSION 1

#define SHARDINIT_API __attribute__((visibility("default")))

/* The exit statuses of shardinit(1) that the library can return. */
typedef enum shardinit_status {
  SHARDINIT_OK = 0,
  SHARDINIT_ERROR_DAMAGE = 1,  /* A file was changed or removed, or does not have its digest. */
  SHARDINIT_ERROR_USAGE = 2,   /* An invalid spec or argument. */
  SHARDINIT_ERROR_WORLD = 3,   /* No memory or permission: a retry may succeed. */
  SHARDINIT_ERROR_REFUSED = 5, /* A file that is damaged, hostile, or in no known format. */
  SHARDINIT_ERROR_BUG = 70     /* A bug in shardinit. */
} shardinit_status;

/* An open spec, plan or folder. */
typedef struct shardinit_spec shardinit_spec;

/* The files of a folder that is not on disk, such as one in a store. */
typedef struct shardinit_files {
  const char* const* names; /* `count` names, relative to the folder: "a/model.safetensors" */
  const int64_t* sizes;     /* their sizes in bytes */
  size_t count;
  /* Reads `bytes` bytes of a file from `offset` on. Returns 0, or another number if it failed.
   * The threads that call the library call it, until shardinit_close(). */
  int (*read_range)(void* context, const char* name, int64_t offset, int64_t bytes, void* out);
  void* context;
} shardinit_files;

/* What to open. Members that are zero or NULL are ignored, so initialize it as in
 *   shardinit_source source = {.struct_size = sizeof source, .path = "model.yaml"};
 */
typedef struct shardinit_source {
  size_t struct_size; /* sizeof(shardinit_source). */
  /* The path of the spec's file. With `text`, only a name for messages, and the folder
   * against which `include` and other paths in the spec are resolved. */
  const char* path;
  const char* text; /* The spec, as `text_size` bytes of YAML. */
  size_t text_size;
  const char* const* sets; /* `set_count` overrides, as for `--set`: */
  size_t set_count;        /* "seed=7"; later ones win. */
  const char* mesh;        /* the argument of `--mesh`: "fsdp=8,tensor=4" */
  const char* layout;      /* the argument of `--layout`, which selects the tensors */
  /* 1 if `text` is the plan.json of a checkpoint, not a spec. */
  int32_t is_plan;
  /* 1 if `path` is a folder of tensors in any format that shardinit reads, or one such file. Then
   * shardinit_fill() reads stored elements, and fails if a file has changed. */
  int32_t is_folder;
  const shardinit_files* files; /* The files of the folder, if it is not on disk. */
  /* 1 if `text` is the manifest.json of a checkpoint, or the shardinit-export.json of an export.
   * Then shardinit_listed_at() finds boxes in files; nothing can be filled. */
  int32_t is_manifest;
  int32_t is_record;
} shardinit_source;

/* Describes a whole spec. */
typedef struct shardinit_info {
  const char* name;
  const char* engine; /* the random number engine */
  uint64_t seed;
  int64_t parameters; /* Elements of all tensors except buffers. */
  int64_t bytes;      /* Bytes of all tensors. */
  int64_t tensor_count;
  int32_t mesh_dimensions;
  const char* const* mesh_axes; /* Their names; the last varies fastest. */
  const int64_t* mesh_shape;
  const char* warnings; /* Warnings about the spec, as a message, or "". */
  /* Only of a manifest or record, else zero or NULL: */
  const char* plan_sha256;
  const char* replicas; /* of a manifest: "dedupe" or "full" */
  const char* format;   /* of a record: the argument of `--to` */
  int64_t file_count;   /* the files with boxes, relative to the folder */
  const char* const* file_names;
  const int64_t* file_sizes;
  const int64_t* device_ids; /* by rank; NULL: rank r is on the r-th device */
  const int64_t* device_slices;
} shardinit_info;

typedef struct shardinit_tensor {
  const char* path;  /* "model.layers.0.mlp.up_proj.weight" */
  const char* dtype; /* "f32", "f64", "bf16", "f16": shardinit-format(5). */
  int32_t element_bytes;
  int32_t dimensions;
  const int64_t* shape; /* the shape of the whole tensor */
  int64_t elements;
  int64_t bytes;
  /* For each dimension, the mesh axes that shard it, the major axis first,
   * separated by commas: "fsdp,tensor"; "" if every rank holds the whole
   * dimension. Omits segments, nested axes and stages: see shardinit_boxes(). */
  const char* const* partition;
  int32_t extended; /* 1 if `partition` omits any of these, else 0 */
} shardinit_tensor;

/* A box of a tensor in a file of a checkpoint or export. */
typedef struct shardinit_listed {
  const int64_t* offset; /* one number per dimension */
  const int64_t* shape;
  int64_t file;          /* the number of the file; of a checkpoint: the rank */
  int64_t place;         /* its first byte in the file; -1 before shardinit_add_receipt() */
  const uint8_t* sha256; /* 32 bytes */
} shardinit_listed;

/* Opens and checks a spec. The caller closes *spec with shardinit_close(). */
SHARDINIT_API shardinit_status shardinit_open(const shardinit_source* source, shardinit_spec** spec,
                                              char** message);

/* Closes a spec; NULL is allowed. */
SHARDINIT_API void shardinit_close(shardinit_spec* spec);

SHARDINIT_API const shardinit_info* shardinit_describe(const shardinit_spec* spec);

/* Returns a tensor by its number, or NULL if no tensor has this number. Tensors are
 * numbered from 0 in the order of the spec. */
SHARDINIT_API const shardinit_tensor* shardinit_tensor_at(const shardinit_spec* spec,
                                                          int64_t index);

/* Returns the number of a tensor, or -1 if no tensor has this path. */
SHARDINIT_API int64_t shardinit_find(const shardinit_spec* spec, const char* path);

/* Writes the elements offset[d] <= i[d] < offset[d] + shape[d] of tensor
 * `index` to `out`, in row-major order, little-endian: the bits that `shardinit
 * gen` stores.
 *
 * `offset` and `shape` have one number per dimension; if both are NULL, the part is
 * the whole tensor. `out` must be aligned to the size of an element, and `out_size` must
 * be the part's exact size in bytes. `threads` is the number of threads; 0 means one for
 * each core that the process may use. The values do not depend on it. */
SHARDINIT_API shardinit_status shardinit_fill(const shardinit_spec* spec, int64_t index,
                                              const int64_t* offset, const int64_t* shape,
                                              void* out, size_t out_size, int32_t threads,
                                              char** message);

/* Does the same as shardinit_fill() in the memory of a CUDA device, with kernels on that device.
 * `out` is a device address. `stream` is a CUstream (a cudaStream_t), or NULL for the default
 * stream. The function does not wait: the elements exist when the stream reaches that point. It
 * uses the thread's current context if that is one of the device, else the device's primary
 * context. The current context stays current.
 *
 * *made becomes 1, or 0 if nothing was done because no kernel generates this tensor's values on
 * the device. Then fill host memory and copy it. Kernels generate constants, and uniform, normal
 * and truncated normal numbers of the engines `philox4x32` and `jax_threefry`. They require
 * compute capability 8.0 or higher, a driver that compiles PTX, and a library built with kernels.
 */
SHARDINIT_API shardinit_status shardinit_fill_cuda(const shardinit_spec* spec, int64_t index,
                                                   const int64_t* offset, const int64_t* shape,
                                                   void* out, size_t out_size, void* stream,
                                                   int32_t* made, char** message);

/* Finds the boxes of tensor `index` that `rank` of the spec's mesh holds. *count becomes the
 * number of boxes: 0 if the rank holds nothing of the tensor, several if the tensor has segments.
 * Joined along each dimension in this order, the boxes are the rank's local tensor. `offsets` and
 * `shapes` receive the first `capacity` boxes, one number per dimension and box. */
SHARDINIT_API shardinit_status shardinit_boxes(const shardinit_spec* spec, int64_t index,
                                               int64_t rank, int64_t* offsets, int64_t* shapes,
                                               int64_t capacity, int64_t* count, char** message);

/* Finds box `number` of tensor `index` of a manifest or record, and returns 1, or 0 if there is no
 * such box. The boxes tile the tensor; a box can have replicas, which are equal. */
SHARDINIT_API int32_t shardinit_listed_at(const shardinit_spec* spec, int64_t index, int64_t number,
                                          shardinit_listed* box);

/* Finds the places of all boxes of a rank in the text of its receipt. Fails with status 1 if the
 * text does not have the digest that the manifest lists. */
SHARDINIT_API shardinit_status shardinit_add_receipt(shardinit_spec* spec, int64_t rank,
                                                     const char* text, size_t text_size,
                                                     char** message);

/* Releases a message; NULL is allowed. */
SHARDINIT_API void shardinit_free(char* message);

/* Describe the linked library: its version, such as "1.2.3"; its SHARDINIT_ABI_VERSION;
 * and the version of its value contract, shardinit-values(7). */
SHARDINIT_API const char* shardinit_version(void);
SHARDINIT_API int32_t shardinit_abi_version(void);
SHARDINIT_API int32_t shardinit_contract_version(void);

#ifdef __cplusplus
}
#endif

#endif /* SHARDINIT_H_ */
