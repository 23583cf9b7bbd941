/* Virtual memory management: true aliases, every strict error, access, lifetimes, export. */
#include "test_engine_host.h"
#include <unistd.h>

#define GRANULE ((size_t)2 << 20)

static const CUmemAllocationProp plain = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                          .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
static const CUmemAccessDesc read_write = {{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                           CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

static CUmemGenericAllocationHandle make(size_t granules) {
  CUmemGenericAllocationHandle handle;
  assert_cuda(impl_cuMemCreate(&handle, granules * GRANULE, &plain, 0));
  return handle;
}

static CUdeviceptr reserve(size_t granules) {
  CUdeviceptr address;
  assert_cuda(impl_cuMemAddressReserve(&address, granules * GRANULE, 0, 0, 0));
  assert_int_equal(address % GRANULE, 0);
  return address;
}

static uint64_t block_id(CUdeviceptr address) {
  unsigned long long id;
  assert_cuda(impl_cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, address));
  return id;
}

static void two_mappings_are_the_same_memory(void **state) {
  (void)state;
  size_t granularity;
  assert_cuda(impl_cuMemGetAllocationGranularity(&granularity, &plain, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  assert_int_equal(granularity, GRANULE);
  CUdeviceptr base = reserve(4);
  CUmemGenericAllocationHandle handle = make(2), other = make(1);
  assert_cuda(impl_cuMemMap(base, 2 * GRANULE, 0, handle, 0));
  assert_cuda(impl_cuMemMap(base + 2 * GRANULE, GRANULE, 0, handle, 0)); /* a prefix of it */
  assert_cuda(impl_cuMemMap(base + 3 * GRANULE, GRANULE, 0, other, 0));
  assert_cuda(impl_cuMemRelease(handle));
  assert_cuda(impl_cuMemRelease(other));
  assert_cuda(impl_cuMemSetAccess(base, 4 * GRANULE, &read_write, 1));
  assert_int_equal(host_word(base), RPSIM_POISON_WORD);
  assert_cuda(host_write(NULL, base + 64, 17));
  assert_int_equal(host_word(base + 2 * GRANULE + 64), 17);
  assert_cuda(host_write(NULL, base + 2 * GRANULE + 64, 18));
  assert_int_equal(host_word(base + 64), 18);
  assert_int_equal(host_word(base + 3 * GRANULE + 64), RPSIM_POISON_WORD);
  assert_true(block_id(base) == block_id(base + 2 * GRANULE));
  assert_true(block_id(base) != block_id(base + 3 * GRANULE));
  assert_int_equal(rpsim_physical_bytes(0), 3 * GRANULE); /* aliases count once */
  assert_cuda(impl_cuMemUnmap(base, 2 * GRANULE));
  assert_int_equal(rpsim_physical_bytes(0), 3 * GRANULE); /* the alias still holds it */
  assert_cuda(impl_cuMemUnmap(base + 2 * GRANULE, 2 * GRANULE));
  assert_int_equal(rpsim_physical_bytes(0), 0);
  assert_cuda(impl_cuMemAddressFree(base, 4 * GRANULE));
}

static void reservations_are_strict(void **state) {
  (void)state;
  CUdeviceptr address;
  assert_int_equal(impl_cuMemAddressReserve(&address, 0, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuMemAddressReserve(&address, GRANULE + 1, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuMemAddressReserve(&address, GRANULE, 3, 0, 0), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuMemAddressReserve(&address, GRANULE, 0, 0, 1), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuMemAddressReserve(NULL, GRANULE, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  address = reserve(2);
  assert_int_equal(impl_cuMemAddressFree(address, GRANULE), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuMemAddressFree(address + GRANULE, GRANULE), CUDA_ERROR_INVALID_VALUE);
  CUmemGenericAllocationHandle handle = make(1);
  assert_cuda(impl_cuMemMap(address + GRANULE, GRANULE, 0, handle, 0));
  assert_int_equal(impl_cuMemAddressFree(address, 2 * GRANULE), CUDA_ERROR_INVALID_VALUE);
  assert_cuda(impl_cuMemUnmap(address + GRANULE, GRANULE));
  assert_cuda(impl_cuMemAddressFree(address, 2 * GRANULE));
  assert_int_equal(impl_cuMemAddressFree(address, 2 * GRANULE), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuMemMap(address, GRANULE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  assert_cuda(impl_cuMemRelease(handle));
}

static void creation_is_strict(void **state) {
  (void)state;
  CUmemGenericAllocationHandle handle;
  CUmemAllocationProp host = plain, absent = plain;
  host.location.type = CU_MEM_LOCATION_TYPE_HOST;
  absent.location.id = 1;
  assert_int_equal(impl_cuMemCreate(&handle, GRANULE / 2, &plain, 0), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuMemCreate(&handle, 0, &plain, 0), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuMemCreate(&handle, GRANULE, NULL, 0), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuMemCreate(&handle, GRANULE, &host, 0), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuMemCreate(&handle, GRANULE, &absent, 0), CUDA_ERROR_INVALID_DEVICE);
  assert_int_equal(impl_cuMemCreate(&handle, HOST_DEVICE_BYTES + GRANULE, &plain, 0),
                   CUDA_ERROR_OUT_OF_MEMORY);
  assert_cuda(impl_cuMemCreate(&handle, HOST_DEVICE_BYTES, &plain, 0));
  CUdeviceptr address;
  assert_int_equal(impl_cuMemAlloc_v2(&address, 1), CUDA_ERROR_OUT_OF_MEMORY);
  assert_cuda(impl_cuMemRelease(handle));
  assert_int_equal(impl_cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(rpsim_physical_bytes(0), 0);
}

static void mapping_is_strict(void **state) {
  (void)state;
  CUdeviceptr base = reserve(3), allocation;
  CUmemGenericAllocationHandle handle = make(2);
  assert_cuda(impl_cuMemAlloc_v2(&allocation, 3 * GRANULE));
  CUdeviceptr inside = (allocation + GRANULE - 1) / GRANULE * GRANULE;
  assert_int_equal(impl_cuMemMap(base, GRANULE, GRANULE, handle, 0), CUDA_ERROR_INVALID_VALUE); /* offset */
  assert_int_equal(impl_cuMemMap(base, GRANULE / 2, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuMemMap(base + 4096, GRANULE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuMemMap(base, 3 * GRANULE, 0, handle, 0),
                   CUDA_ERROR_INVALID_VALUE); /* larger than it */
  assert_int_equal(impl_cuMemMap(base, GRANULE, 0, handle, 1), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuMemMap(inside, GRANULE, 0, handle, 0),
                   CUDA_ERROR_INVALID_VALUE); /* no reservation */
  assert_int_equal(impl_cuMemMap(base + 2 * GRANULE, 2 * GRANULE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuMemMap(base, GRANULE, 0, handle + 1, 0), CUDA_ERROR_INVALID_VALUE);
  assert_cuda(impl_cuMemMap(base + GRANULE, 2 * GRANULE, 0, handle, 0));
  assert_int_equal(impl_cuMemMap(base, 2 * GRANULE, 0, handle, 0),
                   CUDA_ERROR_INVALID_VALUE);                                           /* onto a mapping */
  assert_int_equal(impl_cuMemUnmap(base + GRANULE, GRANULE), CUDA_ERROR_INVALID_VALUE); /* part of one */
  assert_int_equal(impl_cuMemUnmap(base, 3 * GRANULE), CUDA_ERROR_INVALID_VALUE);       /* a gap */
  assert_int_equal(impl_cuMemUnmap(allocation, 3 * GRANULE), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuMemSetAccess(base, 3 * GRANULE, &read_write, 1), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuMemSetAccess(base + GRANULE, GRANULE, &read_write, 1), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuMemSetAccess(base + GRANULE, 2 * GRANULE, NULL, 0), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuMemFree_v2(base + GRANULE), CUDA_ERROR_INVALID_VALUE);
  assert_cuda(impl_cuMemUnmap(base + GRANULE, 2 * GRANULE));
  assert_int_equal(impl_cuMemUnmap(base + GRANULE, 2 * GRANULE), CUDA_ERROR_INVALID_VALUE);
  assert_cuda(impl_cuMemRelease(handle));
  assert_cuda(impl_cuMemAddressFree(base, 3 * GRANULE));
  assert_cuda(impl_cuMemFree_v2(allocation));
}

static void access_decides_whether_memory_can_be_touched(void **state) {
  (void)state;
  CUdeviceptr base = reserve(1);
  CUmemGenericAllocationHandle handle = make(1);
  unsigned long long flags;
  assert_cuda(impl_cuMemMap(base, GRANULE, 0, handle, 0));
  assert_cuda(impl_cuMemGetAccess(&flags, &read_write.location, base));
  assert_int_equal(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  assert_cuda(impl_cuMemSetAccess(base, GRANULE, &read_write, 1));
  assert_cuda(impl_cuMemGetAccess(&flags, &read_write.location, base + 5));
  assert_int_equal(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  assert_cuda(impl_cuMemsetD8_v2(base, 1, GRANULE));
  CUmemAccessDesc none = {read_write.location, CU_MEM_ACCESS_FLAGS_PROT_NONE};
  assert_cuda(impl_cuMemSetAccess(base, GRANULE, &none, 1));
  assert_int_equal(impl_cuMemsetD8_v2(base, 2, GRANULE), CUDA_ERROR_ILLEGAL_ADDRESS);
  assert_cuda(impl_cuMemUnmap(base, GRANULE));
  assert_cuda(impl_cuMemAddressFree(base, GRANULE));
  assert_cuda(impl_cuMemRelease(handle));
}

static void retained_handles_need_their_own_release(void **state) {
  (void)state;
  CUdeviceptr base = reserve(1), allocation;
  CUmemGenericAllocationHandle handle = make(1), again;
  CUmemAllocationProp properties;
  assert_cuda(impl_cuMemMap(base, GRANULE, 0, handle, 0));
  assert_cuda(impl_cuMemRelease(handle));
  assert_int_equal(impl_cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
  assert_cuda(impl_cuMemRetainAllocationHandle(&again, (void *)(base + 100)));
  assert_true(again == handle);
  assert_cuda(impl_cuMemGetAllocationPropertiesFromHandle(&properties, again));
  assert_int_equal(properties.location.id, 0);
  assert_cuda(impl_cuMemUnmap(base, GRANULE));
  assert_int_equal(rpsim_physical_bytes(0), GRANULE);
  assert_cuda(impl_cuMemRelease(again));
  assert_int_equal(rpsim_physical_bytes(0), 0);
  assert_cuda(impl_cuMemAlloc_v2(&allocation, 64));
  assert_int_equal(impl_cuMemRetainAllocationHandle(&again, (void *)allocation), CUDA_ERROR_INVALID_VALUE);
  assert_cuda(impl_cuMemFree_v2(allocation));
  assert_cuda(impl_cuMemAddressFree(base, GRANULE));
}

static void attributes_tell_reservation_from_mapping(void **state) {
  (void)state;
  CUdeviceptr base = reserve(2), start, at;
  CUmemGenericAllocationHandle handle = make(1);
  size_t size_bytes;
  int mapped;
  unsigned ipc;
  CUipcMemHandle ipc_handle;
  CUcontext context;
  at = base + GRANULE + 7;
  assert_cuda(impl_cuMemMap(base + GRANULE, GRANULE, 0, handle, 0));
  assert_cuda(impl_cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at));
  assert_true(start == base);
  assert_cuda(impl_cuPointerGetAttribute(&size_bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at));
  assert_int_equal(size_bytes, 2 * GRANULE);
  assert_cuda(impl_cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, at));
  assert_true(start == base + GRANULE);
  assert_cuda(impl_cuMemGetAddressRange_v2(&start, &size_bytes, at));
  assert_true(start == base + GRANULE && size_bytes == GRANULE);
  assert_cuda(impl_cuPointerGetAttribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, at));
  assert_int_equal(mapped, 1);
  assert_cuda(impl_cuPointerGetAttribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, base));
  assert_int_equal(mapped, 0);
  /* A reserved address that is not mapped has its extent and nothing else. */
  assert_cuda(impl_cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, base + 7));
  assert_true(start == base);
  static const CUpointer_attribute none[] = {
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE,     CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
      CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
      CU_POINTER_ATTRIBUTE_DEVICE_POINTER,  CU_POINTER_ATTRIBUTE_ACCESS_FLAGS};
  for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
    assert_int_equal(impl_cuPointerGetAttribute(&size_bytes, none[i], base), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(impl_cuMemGetAddressRange_v2(&start, &size_bytes, base), CUDA_ERROR_NOT_FOUND);
  assert_cuda(impl_cuPointerGetAttribute(&ipc, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at));
  assert_int_equal(ipc, 0);
  assert_cuda(impl_cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, at));
  assert_null(context);
  assert_int_equal(impl_cuIpcGetMemHandle(&ipc_handle, at), CUDA_ERROR_INVALID_VALUE);
  assert_cuda(impl_cuMemUnmap(base + GRANULE, GRANULE));
  assert_cuda(impl_cuMemRelease(handle));
  assert_cuda(impl_cuMemAddressFree(base, 2 * GRANULE));
}

static void exported_memory_is_the_same_after_import(void **state) {
  (void)state;
  CUmemAllocationProp shareable = plain;
  shareable.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle, imported, private_handle = make(1);
  CUdeviceptr base = reserve(2);
  int file;
  assert_cuda(impl_cuMemCreate(&handle, GRANULE, &shareable, 0));
  assert_int_equal(
      impl_cuMemExportToShareableHandle(&file, private_handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      CUDA_ERROR_INVALID_VALUE);
  assert_cuda(impl_cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  assert_cuda(impl_cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)file,
                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(file);
  assert_cuda(impl_cuMemMap(base, GRANULE, 0, handle, 0));
  assert_cuda(impl_cuMemMap(base + GRANULE, GRANULE, 0, imported, 0));
  assert_cuda(impl_cuMemSetAccess(base, 2 * GRANULE, &read_write, 1));
  assert_cuda(host_write(NULL, base, 23));
  assert_int_equal(host_word(base + GRANULE), 23);
  assert_cuda(impl_cuMemUnmap(base, 2 * GRANULE));
  assert_cuda(impl_cuMemRelease(handle));
  assert_cuda(impl_cuMemRelease(imported));
  assert_cuda(impl_cuMemRelease(private_handle));
  assert_cuda(impl_cuMemAddressFree(base, 2 * GRANULE));
  assert_int_equal(rpsim_physical_bytes(0), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(two_mappings_are_the_same_memory, host_setup, host_teardown),
      cmocka_unit_test_setup_teardown(reservations_are_strict, host_setup, host_teardown),
      cmocka_unit_test_setup_teardown(creation_is_strict, host_setup, host_teardown),
      cmocka_unit_test_setup_teardown(mapping_is_strict, host_setup, host_teardown),
      cmocka_unit_test_setup_teardown(access_decides_whether_memory_can_be_touched, host_setup,
                                      host_teardown),
      cmocka_unit_test_setup_teardown(retained_handles_need_their_own_release, host_setup, host_teardown),
      cmocka_unit_test_setup_teardown(attributes_tell_reservation_from_mapping, host_setup, host_teardown),
      cmocka_unit_test_setup_teardown(exported_memory_is_the_same_after_import, host_setup, host_teardown),
  };
  return cmocka_run_group_tests_name("simulated virtual memory", tests, NULL, NULL);
}
