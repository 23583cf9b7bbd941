/* A stand-in for cuBLAS as torch calls it for float matrices that are products of contiguous ones: real
 * arithmetic, in kernels of its own. It reaches the driver as cuBLAS does, with a CUDA runtime of its own: by
 * dlopen and cuGetProcAddress, where no call can be stopped. To be preloaded. The prototypes are those of
 * cublas_api.h, with int for its enums. */
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../sim/rpsim.h"

enum { SUCCESS = 0, NOT_INITIALIZED = 1, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum { FLOAT32 = 0, TRANSPOSED = 1 }; /* CUDA_R_32F, CUBLAS_OP_T */

struct blas {
  CUstream stream;
  CUcontext context;
  int math_mode, pointer_mode;
};

/* ---- the driver ---- */

static struct {
  CUresult (*current)(CUcontext *);
  CUresult (*set_current)(CUcontext);
  CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                     CUstream, void **, void **);
  CUfunction gemm;
} driver;
static pthread_once_t driver_once = PTHREAD_ONCE_INIT;

/* ---- the kernel ---- */

/* C = alpha op(A) op(B) + beta C, `batch` times; matrices by column. */
struct gemm {
  const float *a, *b;
  float *c;
  int64_t stride_a, stride_b, stride_c;
  int m, n, k, lda, ldb, ldc, batch;
  float alpha, beta;
  bool a_transposed, b_transposed;
};

/* op(A), columns without gaps. */
static void pack(const struct gemm *g, const float *a, float *packed) {
  for (int l = 0; l < g->k; l++)
    for (int i = 0; i < g->m; i++)
      packed[(int64_t)l * g->m + i] =
          g->a_transposed ? a[(int64_t)i * g->lda + l] : a[(int64_t)l * g->lda + i];
}

__attribute__((optimize("O3"))) static void add_scaled(float *restrict c, const float *restrict a, float by,
                                                       int count) {
  for (int i = 0; i < count; i++)
    c[i] += by * a[i];
}

static void multiply(const struct gemm *g, const float *packed, const float *b, float *c) {
  for (int j = 0; j < g->n; j++) {
    float *column = c + (int64_t)j * g->ldc;
    for (int i = 0; i < g->m; i++)
      column[i] = g->beta == 0 ? 0 : g->beta * column[i];
    for (int l = 0; l < g->k; l++) {
      float value = g->b_transposed ? b[(int64_t)l * g->ldb + j] : b[(int64_t)j * g->ldb + l];
      add_scaled(column, packed + (int64_t)l * g->m, g->alpha * value, g->m);
    }
  }
}

static void gemm_body(void *const *params, const struct rpsim_dims *dims) {
  static _Thread_local float *packed; /* a fault leaves this function, so what it holds is kept */
  static _Thread_local size_t capacity;
  const struct gemm *g = params[0];
  size_t needed = (size_t)g->m * (size_t)g->k;
  (void)dims;
  if (needed > capacity) {
    free(packed);
    packed = malloc(needed * sizeof *packed);
    capacity = packed ? needed : 0;
  }
  for (int i = 0; packed && i < g->batch; i++) {
    pack(g, g->a + i * g->stride_a, packed);
    multiply(g, packed, g->b + i * g->stride_b, g->c + i * g->stride_c);
  }
}

static const struct rpsim_param gemm_params[] = {{0, sizeof(struct gemm)}};
static const struct rpsim_kernel gemm_kernel[] = {{"rpsim_sgemm", gemm_body, 1, gemm_params}};

static void load(void) {
  static const uint32_t image[16] = {0xba55ed50}; /* the magic number of a fat binary */
  CUresult (*get)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *) = NULL;
  CUresult (*load_library)(CUlibrary *, const void *, void *, void **, unsigned, void *, void **, unsigned) =
      NULL;
  CUresult (*get_kernel)(CUkernel *, CUlibrary, const char *) = NULL;
  CUresult (*get_function)(CUfunction *, CUkernel) = NULL;
  int (*add)(const struct rpsim_kernel *, size_t) = NULL;
  CUlibrary library;
  CUkernel kernel;
  void *file = dlopen("libcuda.so.1", RTLD_NOW);
  if (!file) return;
  *(void **)&get = dlsym(file, "cuGetProcAddress_v2");
  *(void **)&add = dlsym(file, "rpsim_register_kernels");
  if (!get || !add) return;
  const struct {
    const char *name;
    void *function;
  } wanted[] = {{"cuCtxGetCurrent", &driver.current}, {"cuCtxSetCurrent", &driver.set_current},
                {"cuLaunchKernel", &driver.launch},   {"cuLibraryLoadData", &load_library},
                {"cuLibraryGetKernel", &get_kernel},  {"cuKernelGetFunction", &get_function}};
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
    if (get(wanted[i].name, (void **)wanted[i].function, 12000, CU_GET_PROC_ADDRESS_DEFAULT, NULL)) return;
  if (add(gemm_kernel, 1) || load_library(&library, image, NULL, NULL, 0, NULL, NULL, 0)) return;
  if (get_kernel(&kernel, library, gemm_kernel[0].name) || get_function(&driver.gemm, kernel))
    driver.gemm = NULL;
}

static int launch(const struct blas *blas, struct gemm *g) {
  CUcontext current = NULL;
  void *params[] = {g};
  if (g->m <= 0 || g->n <= 0 || g->batch <= 0) return SUCCESS;
  if (driver.current(&current)) return EXECUTION_FAILED;
  if (!current && driver.set_current(blas->context)) return EXECUTION_FAILED;
  return driver.launch(driver.gemm, 1, 1, 1, 1, 1, 1, 0, blas->stream, params, NULL) ? EXECUTION_FAILED
                                                                                     : SUCCESS;
}

/* ---- what torch calls ---- */

#define API __attribute__((visibility("default"))) int

API cublasCreate_v2(struct blas **out);
API cublasCreate_v2(struct blas **out) {
  pthread_once(&driver_once, load);
  if (!driver.gemm) return NOT_INITIALIZED;
  *out = calloc(1, sizeof **out);
  return *out && !driver.current(&(*out)->context) ? SUCCESS : NOT_INITIALIZED;
}

API cublasDestroy_v2(struct blas *blas);
API cublasDestroy_v2(struct blas *blas) {
  free(blas);
  return SUCCESS;
}

API cublasSetStream_v2(struct blas *blas, CUstream stream);
API cublasSetStream_v2(struct blas *blas, CUstream stream) {
  blas->stream = stream;
  return SUCCESS;
}

API cublasSetWorkspace_v2(struct blas *blas, void *memory, size_t bytes);
API cublasSetWorkspace_v2(struct blas *blas, void *memory, size_t bytes) {
  (void)blas, (void)memory, (void)bytes;
  return SUCCESS;
}

#define MODE(set, get, member)                                                                               \
  API set(struct blas *blas, int mode);                                                                      \
  API set(struct blas *blas, int mode) {                                                                     \
    blas->member = mode;                                                                                     \
    return SUCCESS;                                                                                          \
  }                                                                                                          \
  API get(const struct blas *blas, int *mode);                                                               \
  API get(const struct blas *blas, int *mode) {                                                              \
    *mode = blas->member;                                                                                    \
    return SUCCESS;                                                                                          \
  }
MODE(cublasSetMathMode, cublasGetMathMode, math_mode)
MODE(cublasSetPointerMode_v2, cublasGetPointerMode_v2, pointer_mode)

/* Factors on the host only. */
static int product(const struct blas *blas, int op_a, int op_b, struct gemm g, const float *alpha,
                   const float *beta) {
  if (blas->pointer_mode != 0) return NOT_SUPPORTED;
  g.a_transposed = op_a == TRANSPOSED;
  g.b_transposed = op_b == TRANSPOSED;
  g.alpha = *alpha;
  g.beta = *beta;
  return launch(blas, &g);
}

#define MATRICES .a = a, .b = b, .c = c, .m = m, .n = n, .k = k, .lda = lda, .ldb = ldb, .ldc = ldc

API cublasSgemm_v2(struct blas *blas, int op_a, int op_b, int m, int n, int k, const float *alpha,
                   const float *a, int lda, const float *b, int ldb, const float *beta, float *c, int ldc);
API cublasSgemm_v2(struct blas *blas, int op_a, int op_b, int m, int n, int k, const float *alpha,
                   const float *a, int lda, const float *b, int ldb, const float *beta, float *c, int ldc) {
  return product(blas, op_a, op_b, (struct gemm){MATRICES, .batch = 1}, alpha, beta);
}

API cublasSgemmStridedBatched(struct blas *blas, int op_a, int op_b, int m, int n, int k, const float *alpha,
                              const float *a, int lda, long long stride_a, const float *b, int ldb,
                              long long stride_b, const float *beta, float *c, int ldc, long long stride_c,
                              int batch);
API cublasSgemmStridedBatched(struct blas *blas, int op_a, int op_b, int m, int n, int k, const float *alpha,
                              const float *a, int lda, long long stride_a, const float *b, int ldb,
                              long long stride_b, const float *beta, float *c, int ldc, long long stride_c,
                              int batch) {
  const struct gemm g = {MATRICES, .stride_a = stride_a, .stride_b = stride_b, .stride_c = stride_c,
                         .batch = batch};
  return product(blas, op_a, op_b, g, alpha, beta);
}

API cublasGemmEx(struct blas *blas, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *a,
                 int type_a, int lda, const void *b, int type_b, int ldb, const void *beta, void *c,
                 int type_c, int ldc, int compute, int algorithm);
API cublasGemmEx(struct blas *blas, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *a,
                 int type_a, int lda, const void *b, int type_b, int ldb, const void *beta, void *c,
                 int type_c, int ldc, int compute, int algorithm) {
  (void)compute, (void)algorithm;
  if (type_a != FLOAT32 || type_b != FLOAT32 || type_c != FLOAT32) return NOT_SUPPORTED;
  return product(blas, op_a, op_b, (struct gemm){MATRICES, .batch = 1}, alpha, beta);
}

API cublasGemmStridedBatchedEx(struct blas *blas, int op_a, int op_b, int m, int n, int k, const void *alpha,
                               const void *a, int type_a, int lda, long long stride_a, const void *b,
                               int type_b, int ldb, long long stride_b, const void *beta, void *c, int type_c,
                               int ldc, long long stride_c, int batch, int compute, int algorithm);
API cublasGemmStridedBatchedEx(struct blas *blas, int op_a, int op_b, int m, int n, int k, const void *alpha,
                               const void *a, int type_a, int lda, long long stride_a, const void *b,
                               int type_b, int ldb, long long stride_b, const void *beta, void *c, int type_c,
                               int ldc, long long stride_c, int batch, int compute, int algorithm) {
  (void)compute, (void)algorithm;
  if (type_a != FLOAT32 || type_b != FLOAT32 || type_c != FLOAT32) return NOT_SUPPORTED;
  const struct gemm g = {MATRICES, .stride_a = stride_a, .stride_b = stride_b, .stride_c = stride_c,
                         .batch = batch};
  return product(blas, op_a, op_b, g, alpha, beta);
}
