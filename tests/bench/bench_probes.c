// Attaches probes that do nothing to every place in a library that recvpool would probe, entries and returns,
// says so, and waits until its input ends: what recvpool's own probes are measured against.
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bpf/bpf.h>

#include "bpf/functions.h"
#include "bpf/sites.h"

// The kernel's interface for multi-uprobe links; see bpf/links.c.
struct multi_attributes {
  uint32_t program, target, attach_type, flags;
  uint64_t path, offsets, reference_counters, cookies;
  uint32_t count, multi_flags, pid, padding;
};

static int empty_program(void) {
  const struct bpf_insn nothing[] = {{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0},
                                     {.code = BPF_JMP | BPF_EXIT}};
  LIBBPF_OPTS(bpf_prog_load_opts, options, .expected_attach_type = 48);
  return bpf_prog_load(BPF_PROG_TYPE_KPROBE, "rp_empty", "GPL", nothing, 2, &options);
}

int main(int argc, char **argv) {
  struct rp_sites sites;
  int file = argc == 2 ? open(argv[1], O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0 || rp_sites_read(file, &sites) != RP_OK) {
    fputs("usage: bench_probes LIBRARY\n", stderr);
    return 2;
  }
  int program = empty_program();
  for (int returns = 0; returns < 2; returns++) {
    uint64_t offsets[RP_PROBE_FUNCTIONS];
    uint32_t count = 0;
    for (size_t i = 0; i < sites.count && count < RP_PROBE_FUNCTIONS; i++)
      if (!returns || rp_probe_function_at((size_t)sites.sites[i].function)->returns)
        offsets[count++] = sites.sites[i].offset;
    const struct multi_attributes attributes = {.program = (uint32_t)program,
                                                .attach_type = 48,
                                                .path = (uint64_t)(uintptr_t)argv[1],
                                                .offsets = (uint64_t)(uintptr_t)offsets,
                                                .count = count,
                                                .multi_flags = (uint32_t)returns};
    if (syscall(SYS_bpf, 28, &attributes, sizeof attributes) < 0) {
      fprintf(stderr, "bench_probes: %s\n", strerror(errno));
      return 1;
    }
  }
  puts("ready");
  fflush(stdout);
  while (getchar() != EOF)
    ;
  return 0;
}
