/* Strict mode: the mapping of a buffer that nobody should use is taken away until somebody may. Its memory
 * stays referenced, so that nothing else about it changes. */
#include "pool/pool_internal.h"

rp_status rp_pool_conceal(struct rp_pool *pool, uint32_t id) {
  const struct rp__pool_buffer *buffer = rp__pool_get(pool, id);
  if (!buffer) return RP_ERROR_NOT_FOUND;
  if (buffer->concealed) return RP_OK;
  if (buffer->binding != RP_POOL_BOUND || buffer->pinned || buffer->flags) return RP_ERROR_STATE;
  if (buffer->life != RP_POOL_RELEASED && buffer->life != RP_POOL_DEAD) return RP_ERROR_STATE;
  pool->generation++;
  return rp__pool_detach(pool, id);
}

rp_status rp_pool_reveal(struct rp_pool *pool, uint32_t id) {
  const struct rp__pool_buffer *buffer = rp__pool_get(pool, id);
  if (!buffer) return RP_ERROR_NOT_FOUND;
  if (!buffer->concealed) return RP_OK;
  return rp__pool_attach(pool, id);
}
