/* The backend of a shadow: every call succeeds, and an address range is the program's own allocation. */
#include "pool/guard_internal.h"

static rp_status null_granularity(void *context, uint64_t *bytes) {
  *bytes = ((struct rp_guard *)context)->shadow_granularity;
  return RP_OK;
}

static rp_status null_reserve(void *context, uint64_t bytes, uint64_t *address) {
  (void)bytes;
  *address = ((struct rp_guard *)context)->shadow_address;
  return RP_OK;
}

static rp_status null_range(void *context, uint64_t address, uint64_t bytes) {
  (void)context, (void)address, (void)bytes;
  return RP_OK;
}

static rp_status null_create(void *context, uint64_t bytes, uint64_t *handle) {
  (void)bytes;
  *handle = ++((struct rp_guard *)context)->shadow_handles;
  return RP_OK;
}

static rp_status null_release(void *context, uint64_t handle) {
  (void)context, (void)handle;
  return RP_OK;
}

static rp_status null_map(void *context, uint64_t address, uint64_t bytes, uint64_t handle) {
  (void)context, (void)address, (void)bytes, (void)handle;
  return RP_OK;
}

void rp__guard_null_backend(struct rp_guard *guard) {
  guard->null_backend = (struct rp_backend){.version = RP_BACKEND_VERSION,
                                            .context = guard,
                                            .granularity = null_granularity,
                                            .reserve = null_reserve,
                                            .unreserve = null_range,
                                            .create = null_create,
                                            .release = null_release,
                                            .map = null_map,
                                            .unmap = null_range,
                                            .set_access = null_range};
}
