/* Streams and flags out of the launch configurations of the driver and the runtime. */
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "cupti/cuda_side.h"

uint64_t rp_driver_config_stream(const void *config, uint32_t *event_flags) {
  const CUlaunchConfig *c = config;
  if (!c) return 0;
  for (unsigned i = 0; c->attrs && i < c->numAttrs; i++)
    if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION &&
        c->attrs[i].value.programmaticStreamSerializationAllowed)
      *event_flags |= RP_EVENT_FLAG_PDL;
  return (uint64_t)(uintptr_t)c->hStream;
}

uint64_t rp_runtime_config_stream(const void *config, uint32_t *event_flags) {
  const cudaLaunchConfig_t *c = config;
  if (!c) return 0;
  for (unsigned i = 0; c->attrs && i < c->numAttrs; i++)
    if (c->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization &&
        c->attrs[i].val.programmaticStreamSerializationAllowed)
      *event_flags |= RP_EVENT_FLAG_PDL;
  return (uint64_t)(uintptr_t)c->stream;
}
