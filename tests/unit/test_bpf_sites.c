/* Places to probe in an ELF file: names and aliases, landing pads, nops, and files that are damaged in every
 * way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bpf/functions.h"
#include "bpf/sites.h"

static rp_status read_file(const char *path, struct rp_sites *out) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  assert_true(fd >= 0);
  rp_status status = rp_sites_read(fd, out);
  (void)close(fd);
  return status;
}

static const struct rp_site *site_of(const struct rp_sites *sites, const char *name) {
  for (size_t i = 0; i < sites->count; i++)
    if (sites->sites[i].function == rp_probe_function_find(name)) return &sites->sites[i];
  return NULL;
}

static void finds_every_function_once(void **state) {
  (void)state;
  struct rp_sites sites;
  assert_int_equal(read_file(MOCK, &sites), RP_OK);
  assert_int_equal(sites.refused_count, 0);
  assert_int_equal(strlen(sites.build_id), 40);
  for (size_t i = 1; i < sites.count; i++)
    assert_true(sites.sites[i - 1].offset < sites.sites[i].offset);
  static const char *const names[] = {"ncclSend",      "ncclRecv",   "ncclGroupStart",
                                      "ncclGroupEnd",  "cudaMalloc", "ncclCommInitRank",
                                      "cuMemAlloc_v2", "cuMemMap",   "ncclCommSplit"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    assert_non_null(site_of(&sites, names[i]));
  rp_sites_fini(&sites);
}

static unsigned char byte_at(const char *path, uint64_t offset) {
  unsigned char byte;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
  (void)close(fd);
  return byte;
}

static void steps_over_landing_pads(void **state) {
  (void)state;
  struct rp_sites plain, padded;
  assert_int_equal(read_file(MOCK, &plain), RP_OK);
  assert_int_equal(read_file(MOCK_PAD, &padded), RP_OK);
  assert_int_equal(plain.count, padded.count);
  assert_int_equal(byte_at(MOCK, site_of(&plain, "ncclSend")->offset), 0x55); /* push %rbp */
  uint64_t offset = site_of(&padded, "ncclSend")->offset;
  assert_int_equal(byte_at(MOCK_PAD, offset), 0x55);
  assert_int_equal(byte_at(MOCK_PAD, offset - 4), 0xf3); /* endbr64 */
  rp_sites_fini(&plain);
  rp_sites_fini(&padded);
}

static void refuses_five_byte_nops(void **state) {
  (void)state;
  struct rp_sites sites;
  assert_int_equal(read_file(NOP5, &sites), RP_OK);
  assert_int_equal(sites.count, 1);
  assert_int_equal(sites.sites[0].function, rp_probe_function_find("ncclRecv"));
  assert_int_equal(sites.refused_count, 1);
  assert_int_equal(sites.refused[0].function, rp_probe_function_find("ncclSend"));
  assert_non_null(strstr(sites.refused[0].reason, "five-byte nop"));
  rp_sites_fini(&sites);
}

static void imports_are_no_sites(void **state) {
  (void)state;
  struct rp_sites sites;
  assert_int_equal(read_file(IMPORTS, &sites), RP_ERROR_NOT_FOUND);
  assert_int_equal(sites.count, 0);
}

static void what_is_no_library(void **state) {
  (void)state;
  struct rp_sites sites;
  assert_int_equal(read_file("/dev/null", &sites), RP_ERROR_SYNTAX);
  assert_int_equal(read_file("/etc/passwd", &sites), RP_ERROR_SYNTAX);
  assert_int_equal(rp_sites_read(-1, &sites), RP_ERROR_SYNTAX);
  rp_sites_fini(&sites);
  rp_sites_fini(&sites);
}

/* ---- damage ---- */

struct file {
  unsigned char *bytes;
  size_t size;
};

static struct file load(const char *path) {
  struct stat info;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  assert_int_equal(fstat(fd, &info), 0);
  struct file file = {malloc((size_t)info.st_size), (size_t)info.st_size};
  assert_int_equal(read(fd, file.bytes, file.size), (ssize_t)file.size);
  (void)close(fd);
  return file;
}

static rp_status read_bytes(const unsigned char *bytes, size_t size) {
  struct rp_sites sites;
  int fd = memfd_create("elf", MFD_CLOEXEC);
  assert_int_equal(write(fd, bytes, size), (ssize_t)size);
  rp_status status = rp_sites_read(fd, &sites);
  for (size_t i = 0; i < sites.count; i++) {
    assert_in_range(sites.sites[i].offset, 1, size - 1);
    assert_non_null(rp_probe_function_at((size_t)sites.sites[i].function));
  }
  if (status != RP_OK) assert_int_equal(sites.count, 0);
  rp_sites_fini(&sites);
  (void)close(fd);
  return status;
}

static void cut_at_every_length(void **state) {
  (void)state;
  struct file file = load(NOP5);
  assert_int_equal(read_bytes(file.bytes, file.size), RP_OK);
  for (size_t size = 0; size < file.size; size += size < 256 ? 1 : 61)
    (void)read_bytes(file.bytes, size);
  free(file.bytes);
}

static void random_bytes_changed(void **state) {
  (void)state;
  struct file file = load(NOP5);
  unsigned char *copy = malloc(file.size);
  unsigned understood = 0;
  srand(7);
  for (int round = 0; round < 4000; round++) {
    memcpy(copy, file.bytes, file.size);
    for (int change = rand() % 8; change >= 0; change--) {
      /* headers and tables more often than the rest */
      size_t at = (size_t)rand() % (rand() % 2 ? 1024 : file.size);
      copy[at] = (unsigned char)(rand() % 3 ? rand() : rand() % 2 ? 0xff : 0);
    }
    understood += read_bytes(copy, file.size) == RP_OK;
  }
  assert_in_range(understood, 100, 3900); /* both ways were gone */
  free(copy);
  free(file.bytes);
}

static void another_machine(void **state) {
  (void)state;
  struct file file = load(NOP5);
  file.bytes[18] = 183; /* e_machine: AArch64 */
  assert_int_equal(read_bytes(file.bytes, file.size), RP_ERROR_VERSION);
  free(file.bytes);
}

/* ---- the table ---- */

static void the_table_is_consistent(void **state) {
  (void)state;
  assert_true(rp_probe_function_count() < RP_PROBE_FUNCTION_PROCESS);
  for (size_t i = 0; i < rp_probe_function_count(); i++) {
    const struct rp_probe_function *function = rp_probe_function_at(i);
    assert_int_equal(rp_probe_function_find(function->name), i);
    if (function->alias) assert_int_equal(rp_probe_function_find(function->alias), i);
    assert_in_range(function->shape.class_, RP_PROBE_NONE + 1, RP_PROBE_CLASS_COUNT - 1);
    assert_in_range(rp_probe_function_arguments(i), 0, RP_PROBE_REGISTERS);
    /* what a call writes is known only when it returns */
    if (function->shape.out) assert_true(function->returns);
  }
  assert_null(rp_probe_function_at(rp_probe_function_count()));
  assert_int_equal(rp_probe_function_find("cudaMallocHost"), -1);
  assert_int_equal(rp_probe_function_find(""), -1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(finds_every_function_once), cmocka_unit_test(steps_over_landing_pads),
      cmocka_unit_test(refuses_five_byte_nops),    cmocka_unit_test(imports_are_no_sites),
      cmocka_unit_test(what_is_no_library),        cmocka_unit_test(cut_at_every_length),
      cmocka_unit_test(random_bytes_changed),      cmocka_unit_test(another_machine),
      cmocka_unit_test(the_table_is_consistent),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
