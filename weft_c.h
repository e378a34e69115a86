/* weft's interface for C: runs models that a shared library of C++ defines (weft/c_api/model.h),
   in programs of any language that calls C. docs/embedding.md has a whole example.

   No exception leaves these functions. One that fails returns NULL, or a status that is not 0, and
   weft_last_error() says why. Several threads may call them at a time; a model is used by one
   thread at a time, and weft_model_clone() makes one for another thread. */
#ifndef WEFT_C_H
#define WEFT_C_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. It grows whenever a program that was compiled with an older header
   would not run any more; a function more is no such change. */
#define WEFT_C_VERSION 1

/* WEFT_C_VERSION of the library that is loaded; ask before anything else if it may be another one
   than that of the header. */
int weft_c_version(void);
/* "0.2.0": the version of weft. */
const char* weft_version(void);

/* The reason why the calling thread's last function that failed did so; "" before that. The text is
   overwritten by the next failure. */
const char* weft_last_error(void);

/* A tensor of DLPack 1.x. The members are those of DLManagedTensorVersioned, so that a pointer to
   one is a pointer to the other: numpy's, PyTorch's and weft's tensors pass without a copy. */
typedef struct weft_tensor {
  uint32_t major, minor; /* 1, 0 */
  void* context;         /* the producer's own */
  /* Called once, by whom the tensor was given to, when it no longer needs the memory; may be NULL.
   */
  void (*deleter)(struct weft_tensor*);
  uint64_t flags; /* 0 or WEFT_READ_ONLY */
  void* data;
  int32_t device_type; /* WEFT_CPU or WEFT_CUDA */
  int32_t device_id;
  int32_t dimensions;
  uint8_t type;   /* WEFT_FLOAT ... */
  uint8_t bits;   /* of an element */
  uint16_t lanes; /* 1 */
  int64_t* shape;
  int64_t* strides;     /* in elements; NULL: row-major */
  uint64_t byte_offset; /* from data to the first element */
} weft_tensor;

enum { WEFT_READ_ONLY = 1 };
enum { WEFT_CPU = 1, WEFT_CUDA = 2 };
/* With 8 bits: bool, u8; 32: i32, f32; 64: i64, f64; 16: bf16. */
enum { WEFT_INT = 0, WEFT_UINT = 1, WEFT_FLOAT = 2, WEFT_BFLOAT = 4, WEFT_BOOL = 6 };

typedef struct weft_model weft_model;

/* Makes the model that WEFT_C_MODEL(name, ...) defines in a shared library, in evaluation mode, on
   "cpu", "cpu:1", "cuda:0" ... (NULL: "cpu"). `library` is a path as for dlopen(3), or NULL for the
   program itself. The library stays loaded until the process ends. */
weft_model* weft_model_open(const char* library, const char* name, const char* device);

/* Loads weights from FILE or FILE:KEY, a file of safetensors or of torch.save, which its first
   bytes tell. The names must be those of the model, if need be behind a prefix of PyTorch's
   wrappers
   ("module."). After a failure the model is as before. */
int weft_model_load(weft_model* model, const char* file);

/* Computes outputs = model(inputs), recording no gradients. *output_count says how many outputs
   there is room for, and then how many there are: if the room is too small, the call fails, having
   said how many. The model takes over the inputs: it calls their deleters when it no longer needs
   the memory, also if it fails, and does not write to it unless the model's own code does. A tensor
   may be several inputs; its deleter is called once. Inputs on another device than the model's are
   copied. The outputs are where the first input is, and belong to the caller, who calls their
   deleters: output->deleter(output). */
int weft_model_forward(weft_model* model, weft_tensor* const* inputs, size_t input_count,
                       weft_tensor** outputs, size_t* output_count);

/* A copy with weights of its own. */
weft_model* weft_model_clone(const weft_model* model);

/* Frees the model; NULL is no model. Outputs stay. */
void weft_model_free(weft_model* model);

/* The number of threads for what the calling thread computes on the CPU; at first OMP_NUM_THREADS,
   or the number of cores. */
int weft_set_num_threads(int count);

#ifdef __cplusplus
}
#endif

#endif
