/* The guards' backend: that of the device, without the core lock. Owns nothing. */
#include "agent/agent.h"
#include "agent/enforce_internal.h"

/* Only while acting, so that nobody else comes to the guard in between. */
#define WITHOUT_LOCK(call)                                                                                   \
  const struct rp_backend *driver = &((struct rp__device *)context)->driver;                                 \
  rp_agent_unlock();                                                                                         \
  rp_status status = driver->call;                                                                           \
  (void)rp_agent_lock();                                                                                     \
  return status

static rp_status granularity(void *context, uint64_t *bytes) {
  WITHOUT_LOCK(granularity(driver->context, bytes));
}

static rp_status reserve(void *context, uint64_t bytes, uint64_t *address) {
  WITHOUT_LOCK(reserve(driver->context, bytes, address));
}

static rp_status unreserve(void *context, uint64_t address, uint64_t bytes) {
  WITHOUT_LOCK(unreserve(driver->context, address, bytes));
}

static rp_status create(void *context, uint64_t bytes, uint64_t *handle) {
  WITHOUT_LOCK(create(driver->context, bytes, handle));
}

static rp_status release(void *context, uint64_t handle) {
  WITHOUT_LOCK(release(driver->context, handle));
}

static rp_status map(void *context, uint64_t address, uint64_t bytes, uint64_t handle) {
  WITHOUT_LOCK(map(driver->context, address, bytes, handle));
}

static rp_status unmap(void *context, uint64_t address, uint64_t bytes) {
  WITHOUT_LOCK(unmap(driver->context, address, bytes));
}

static rp_status set_access(void *context, uint64_t address, uint64_t bytes) {
  WITHOUT_LOCK(set_access(driver->context, address, bytes));
}

static rp_status write_word(void *context, uint64_t address, uint64_t word) {
  WITHOUT_LOCK(write_word(driver->context, address, word));
}

static rp_status read_word(void *context, uint64_t address, uint64_t *word) {
  WITHOUT_LOCK(read_word(driver->context, address, word));
}

void rp__backend(struct rp__device *device, struct rp_backend *out) {
  *out = (struct rp_backend){.version = RP_BACKEND_VERSION,
                             .context = device,
                             .granularity = granularity,
                             .reserve = reserve,
                             .unreserve = unreserve,
                             .create = create,
                             .release = release,
                             .map = map,
                             .unmap = unmap,
                             .set_access = set_access};
  if (!device->driver.write_word || !device->driver.read_word) return;
  out->write_word = write_word;
  out->read_word = read_word;
}
