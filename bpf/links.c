/* Links. libbpf has had a call for multi-uprobe links since 1.3 only, so the kernel is asked directly. */
#include "bpf/links.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "bpf/functions.h"

/* From the kernel's interface, which older headers lack. */
#define COMMAND_LINK_CREATE 28
#define TRACE_UPROBE_MULTI 48
#define MULTI_RETURN 1u

struct multi_attributes {
  uint32_t program, target, attach_type, flags;
  uint64_t path, offsets, reference_counters, cookies;
  uint32_t count, multi_flags, pid, padding;
};

static int multi_link(int program, const char *path, const uint64_t *offsets, const uint64_t *cookies,
                      uint32_t count, bool returns) {
  struct multi_attributes attributes = {.program = (uint32_t)program,
                                        .attach_type = TRACE_UPROBE_MULTI,
                                        .path = (uint64_t)(uintptr_t)path,
                                        .offsets = (uint64_t)(uintptr_t)offsets,
                                        .cookies = (uint64_t)(uintptr_t)cookies,
                                        .count = count,
                                        .multi_flags = returns ? MULTI_RETURN : 0};
  long fd = syscall(__NR_bpf, COMMAND_LINK_CREATE, &attributes, sizeof attributes);
  return fd < 0 ? -errno : (int)fd;
}

/* A folder cannot be probed; only a kernel that knows the link kind gets as far as noticing. */
bool rp_links_have_multi(void) {
  const struct bpf_insn nothing[] = {{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0},
                                     {.code = BPF_JMP | BPF_EXIT}};
  LIBBPF_OPTS(bpf_prog_load_opts, options, .expected_attach_type = TRACE_UPROBE_MULTI);
  int program = bpf_prog_load(BPF_PROG_TYPE_KPROBE, "rp_try", "GPL", nothing, 2, &options);
  if (program < 0) return false;
  uint64_t offset = 0;
  int result = multi_link(program, "/", &offset, NULL, 1, false);
  if (result >= 0) (void)close(result);
  (void)close(program);
  return result == -EBADF;
}

int rp_links_attach_type(enum rp_link_kind kind) {
  return kind == RP_LINK_MULTI ? TRACE_UPROBE_MULTI : 0;
}

static bool is_wanted(const struct rp_link_request *request, const struct rp_site *site, bool returns) {
  const struct rp_probe_function *function = rp_probe_function_at((size_t)site->function);
  if (function->need == RP_PROBE_WITH_LAUNCHES && !request->launches) return false;
  return !returns || (function->returns && request->returns);
}

static uint64_t cookie_of(const struct rp_link_request *request, const struct rp_site *site) {
  return (uint64_t)request->library << 16 | (is_wanted(request, site, true) ? RP_PROBE_COOKIE_RETURNS : 0) |
         (uint64_t)site->function;
}

static int attach_multi(const struct rp_link_request *request, const struct rp_sites *sites, const char *path,
                        bool returns, struct rp_links *out) {
  uint64_t *offsets = calloc(2 * sites->count + 1, sizeof *offsets), *cookies = offsets + sites->count;
  uint32_t count = 0;
  if (!offsets) return -ENOMEM;
  for (size_t i = 0; i < sites->count; i++) {
    if (!is_wanted(request, &sites->sites[i], returns)) continue;
    offsets[count] = sites->sites[i].offset;
    cookies[count++] = cookie_of(request, &sites->sites[i]);
  }
  int program = bpf_program__fd(returns ? request->leave : request->enter);
  int fd = count ? multi_link(program, path, offsets, cookies, count, returns) : -1;
  free(offsets);
  if (count && fd < 0) return fd;
  out->multi[returns] = fd + 1;
  out->probes += count;
  return 0;
}

static int attach_perf(const struct rp_link_request *request, const struct rp_sites *sites, const char *path,
                       bool returns, struct rp_links *out) {
  for (size_t i = 0; i < sites->count; i++) {
    if (!is_wanted(request, &sites->sites[i], returns)) continue;
    LIBBPF_OPTS(bpf_uprobe_opts, options, .retprobe = returns,
                .bpf_cookie = cookie_of(request, &sites->sites[i]));
    struct bpf_link *link = bpf_program__attach_uprobe_opts(returns ? request->leave : request->enter, -1,
                                                            path, sites->sites[i].offset, &options);
    if (!link) return -errno;
    out->perf[out->perf_count++] = link;
    out->probes++;
  }
  return 0;
}

int rp_links_attach(const struct rp_link_request *request, const struct rp_sites *sites,
                    struct rp_links *out) {
  char path[64]; /* leads to the very file, whatever its name means by now */
  snprintf(path, sizeof path, "/proc/self/fd/%d", request->file);
  *out = (struct rp_links){0};
  if (request->kind == RP_LINK_PERF) {
    out->perf = calloc(2 * sites->count + 1, sizeof(struct bpf_link *));
    if (!out->perf) return -ENOMEM;
  }
  int result = 0;
  for (int returns = 1; returns >= 0 && result == 0; returns--)
    result = request->kind == RP_LINK_PERF ? attach_perf(request, sites, path, returns, out)
                                           : attach_multi(request, sites, path, returns, out);
  if (result != 0) rp_links_detach(out);
  return result;
}

void rp_links_detach(struct rp_links *links) {
  for (int returns = 0; returns < 2; returns++)
    if (links->multi[returns]) (void)close(links->multi[returns] - 1);
  while (links->perf_count > 0) /* the entries were attached last */
    (void)bpf_link__destroy(links->perf[--links->perf_count]);
  free(links->perf);
  *links = (struct rp_links){0};
}
