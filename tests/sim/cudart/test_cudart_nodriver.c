/* The runtime on a machine without a driver: every call answers 35 and nothing crashes. Built against the
 * shared and the static runtime; skipped where a libcuda.so.1 is to be found. */
#include <cuda_runtime_api.h>

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

/* Tells ctest to skip where the machine has a driver. */
enum { EXIT_SKIPPED = 77 };

static int driver_present(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver) dlclose(driver);
  return driver != NULL;
}

static void test_calls_report_missing_driver(void **state) {
  (void)state;
  int count = 7;
  void *pointer = &count;
  assert_int_equal(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
  assert_int_equal(cudaMalloc(&pointer, 64), cudaErrorInsufficientDriver);
  assert_ptr_equal(pointer, &count);
  assert_int_equal(cudaSetDevice(0), cudaErrorInsufficientDriver);
  assert_int_equal(cudaDeviceSynchronize(), cudaErrorInsufficientDriver);
  assert_int_equal(cudaFree(NULL), cudaErrorInsufficientDriver);
  assert_int_equal(cudaStreamSynchronize(NULL), cudaErrorInsufficientDriver);
  assert_int_equal(cudaLaunchKernel((void *)test_calls_report_missing_driver, (dim3){1, 1, 1},
                                    (dim3){1, 1, 1}, NULL, 0, NULL),
                   cudaErrorInsufficientDriver);
}

static void test_last_error_is_kept(void **state) {
  (void)state;
  int count;
  cudaGetDeviceCount(&count);
  assert_int_equal(cudaPeekAtLastError(), cudaErrorInsufficientDriver);
  assert_int_equal(cudaGetLastError(), cudaErrorInsufficientDriver);
  assert_int_equal(cudaGetLastError(), cudaSuccess);
}

static void test_versions_need_no_driver(void **state) {
  (void)state;
  int version = -1;
  assert_int_equal(cudaRuntimeGetVersion(&version), cudaSuccess);
  assert_int_equal(version, 13000);
  assert_int_equal(cudaDriverGetVersion(&version), cudaSuccess);
  assert_int_equal(version, 0);
  assert_int_equal(cudaGetLastError(), cudaSuccess);
  assert_string_equal(cudaGetErrorName(cudaErrorInsufficientDriver), "cudaErrorInsufficientDriver");
  assert_string_equal(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_calls_report_missing_driver),
      cmocka_unit_test(test_last_error_is_kept),
      cmocka_unit_test(test_versions_need_no_driver),
  };
  if (driver_present()) return EXIT_SKIPPED;
  return cmocka_run_group_tests(tests, NULL, NULL);
}
