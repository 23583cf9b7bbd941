/* Streams, flags and events out of the launch configurations and graph nodes of the driver and the runtime.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "cupti/cuda_side.h"

uint64_t rp_driver_config_stream(const void *config, uint32_t *event_flags) {
  const CUlaunchConfig *c = config;
  if (!c) return 0;
  for (unsigned i = 0; c->attrs && i < c->numAttrs; i++) {
    const CUlaunchAttributeID id = c->attrs[i].id;
    if (id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION &&
        c->attrs[i].value.programmaticStreamSerializationAllowed)
      *event_flags |= RP_EVENT_FLAG_PDL;
    if (id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT || id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT)
      *event_flags |= RP_LAUNCH_RECORDS;
  }
  return (uint64_t)(uintptr_t)c->hStream;
}

uint64_t rp_runtime_config_stream(const void *config, uint32_t *event_flags) {
  const cudaLaunchConfig_t *c = config;
  if (!c) return 0;
  for (unsigned i = 0; c->attrs && i < c->numAttrs; i++) {
    const cudaLaunchAttributeID id = c->attrs[i].id;
    if (id == cudaLaunchAttributeProgrammaticStreamSerialization &&
        c->attrs[i].val.programmaticStreamSerializationAllowed)
      *event_flags |= RP_EVENT_FLAG_PDL;
    if (id == cudaLaunchAttributeProgrammaticEvent || id == cudaLaunchAttributeLaunchCompletionEvent)
      *event_flags |= RP_LAUNCH_RECORDS;
  }
  return (uint64_t)(uintptr_t)c->stream;
}

void rp_driver_config_grid(const void *config, uint32_t grid[3]) {
  const CUlaunchConfig *c = config;
  grid[0] = c ? c->gridDimX : 0;
  grid[1] = c ? c->gridDimY : 0;
  grid[2] = c ? c->gridDimZ : 0;
}

void rp_runtime_config_grid(const void *config, uint32_t grid[3]) {
  const cudaLaunchConfig_t *c = config;
  grid[0] = c ? c->gridDim.x : 0;
  grid[1] = c ? c->gridDim.y : 0;
  grid[2] = c ? c->gridDim.z : 0;
}

bool rp_driver_config_event(const void *config, unsigned *at, uint64_t *event, bool *started) {
  const CUlaunchConfig *c = config;
  for (; c && c->attrs && *at < c->numAttrs; ++*at) {
    const CUlaunchAttribute *attribute = &c->attrs[*at];
    *started = attribute->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT;
    if (*started)
      *event = (uint64_t)(uintptr_t)attribute->value.programmaticEvent.event;
    else if (attribute->id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT)
      *event = (uint64_t)(uintptr_t)attribute->value.launchCompletionEvent.event;
    else
      continue;
    ++*at;
    return true;
  }
  return false;
}

bool rp_runtime_config_event(const void *config, unsigned *at, uint64_t *event, bool *started) {
  const cudaLaunchConfig_t *c = config;
  for (; c && c->attrs && *at < c->numAttrs; ++*at) {
    const cudaLaunchAttribute *attribute = &c->attrs[*at];
    *started = attribute->id == cudaLaunchAttributeProgrammaticEvent;
    if (*started)
      *event = (uint64_t)(uintptr_t)attribute->val.programmaticEvent.event;
    else if (attribute->id == cudaLaunchAttributeLaunchCompletionEvent)
      *event = (uint64_t)(uintptr_t)attribute->val.launchCompletionEvent.event;
    else
      continue;
    ++*at;
    return true;
  }
  return false;
}

uint64_t rp_driver_node_event(const void *params) {
  const CUgraphNodeParams *p = params;
  return p && p->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD ? (uint64_t)(uintptr_t)p->eventRecord.event : 0;
}

uint64_t rp_runtime_node_event(const void *params) {
  const struct cudaGraphNodeParams *p = params;
  return p && p->type == cudaGraphNodeTypeEventRecord ? (uint64_t)(uintptr_t)p->eventRecord.event : 0;
}
