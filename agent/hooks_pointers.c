/* Questions about addresses, and ways in which memory leaves the process. What the program asks about memory
 * of ours is answered as for memory of the driver's own: a buffer without memory behind it is answered for by
 * one that has some, and the reservation and the mapping below a buffer do not show. */
#include <stddef.h>
#include <stdint.h>

#include "agent/abi.h"
#include "agent/agent.h"
#include "agent/enforce.h"
#include "agent/hooks.h"
#include "agent/state.h"

/* Allocation calls of NCCL and of the agent are none of the program's. Ended by rp_call_end. */
static bool begin(void) {
  (void)rp_call_begin(RP_CALL_ALLOC);
  return rp_enforce_on() && rp_call_is_programs(RP_CALL_ALLOC);
}

/* Whether `address` is in a buffer of ours; its memory is there afterwards if no other buffer's is. */
static bool find(bool asks, uint64_t address, struct rp_enforce_buffer *out) {
  if (!asks || !address || !rp_enforce_find(address, out)) return false;
  if (!out->backed && !out->sibling) rp_enforce_touch(address);
  return true;
}

/* An address that the driver knows as memory, and says the same about. */
static uint64_t ask_about(const struct rp_enforce_buffer *buffer, uint64_t address) {
  return !buffer->backed && buffer->sibling ? buffer->sibling : address;
}

/* ---- the runtime's question ---- */

RP_HOOK(int, cudaPointerGetAttributes, (struct rp_abi_pointer * out, const void *address)) {
  struct rp_enforce_buffer buffer;
  bool ours = find(begin(), (uint64_t)(uintptr_t)address, &buffer);
  uint64_t about = ours ? ask_about(&buffer, (uint64_t)(uintptr_t)address) : (uint64_t)(uintptr_t)address;
  int result = real_cudaPointerGetAttributes(out, (const void *)(uintptr_t)about);
  if (ours && out && result == RP_ABI_SUCCESS) out->device_pointer = (void *)(uintptr_t)address;
  rp_call_end(RP_CALL_ALLOC);
  return result;
}

/* ---- the driver's questions ---- */

/* What tells allocations apart must not be the same for buffers with the same memory, and must not be that of
 * the sibling; it becomes another one when other memory comes to lie behind the buffer. */
static uint64_t own_id(const struct rp_enforce_buffer *buffer, uint64_t id) {
  uint64_t number = buffer->backed ? id & ((UINT64_C(1) << 27) - 1) : 0;
  return UINT64_C(1) << 63 | buffer->begin >> 12 << 27 | number;
}

/* Our own numbers over the driver's. */
static void correct(unsigned attribute, uint64_t address, const struct rp_enforce_buffer *buffer,
                    void *data) {
  uint64_t *word = data;
  switch (attribute) {
  case RP_ABI_POINTER_CONTEXT:
    *word = buffer->context;
    break;
  case RP_ABI_POINTER_DEVICE_POINTER:
    *word = address;
    break;
  case RP_ABI_POINTER_RANGE_START:
    *word = buffer->begin;
    break;
  case RP_ABI_POINTER_RANGE_SIZE:
  case RP_ABI_POINTER_MAPPING_SIZE:
    *word = buffer->bytes;
    break;
  case RP_ABI_POINTER_MAPPING_BASE:
    *word = buffer->begin;
    break;
  case RP_ABI_POINTER_BUFFER_ID:
  case RP_ABI_POINTER_BLOCK_ID:
    *word = own_id(buffer, *word);
    break;
  default:
    break;
  }
}

RP_HOOK(int, cuPointerGetAttribute, (void *data, unsigned attribute, uint64_t address)) {
  struct rp_enforce_buffer buffer;
  bool ours = find(begin(), address, &buffer);
  int result = real_cuPointerGetAttribute(data, attribute, ours ? ask_about(&buffer, address) : address);
  if (ours && result == RP_ABI_SUCCESS) correct(attribute, address, &buffer, data);
  rp_call_end(RP_CALL_ALLOC);
  return result;
}

RP_HOOK(int, cuPointerGetAttributes, (unsigned count, unsigned *attributes, void **data, uint64_t address)) {
  struct rp_enforce_buffer buffer;
  bool ours = find(begin(), address, &buffer);
  int result =
      real_cuPointerGetAttributes(count, attributes, data, ours ? ask_about(&buffer, address) : address);
  for (unsigned i = 0; ours && result == RP_ABI_SUCCESS && i < count; i++)
    correct(attributes[i], address, &buffer, data[i]);
  rp_call_end(RP_CALL_ALLOC);
  return result;
}

RP_HOOK(int, cuMemGetAddressRange_v2, (uint64_t * base, size_t *bytes, uint64_t address)) {
  struct rp_enforce_buffer buffer;
  bool ours = find(begin(), address, &buffer);
  int result = real_cuMemGetAddressRange_v2(base, bytes, ours ? ask_about(&buffer, address) : address);
  if (ours && result == RP_ABI_SUCCESS && base) *base = buffer.begin;
  if (ours && result == RP_ABI_SUCCESS && bytes) *bytes = buffer.bytes;
  rp_call_end(RP_CALL_ALLOC);
  return result;
}

/* ---- ways out ---- */

/* Told before the call: from then on the buffer keeps its memory for itself, whatever the driver answers.
 * False: it cannot. */
static bool may_get_away(uint64_t address, uint64_t bytes) {
  bool watches = rp_enforce_watches() && rp_call_is_programs(RP_CALL_ALLOC);
  return !watches || rp_enforce_flag(address, bytes, RP_POOL_FLAG_ESCAPED, RP_EVENT_NONE);
}

#define EXPORT(name, parameters, arguments, address, bytes)                                                  \
  RP_HOOK(int, name, parameters) {                                                                           \
    int result;                                                                                              \
    (void)rp_call_begin(RP_CALL_ALLOC);                                                                      \
    if (may_get_away((uint64_t)(uintptr_t)(address), (bytes)))                                               \
      result = real_##name arguments;                                                                        \
    else                                                                                                     \
      result = rp_hook_fail(#name, (void *)real_##name, RP_ABI_OUT_OF_MEMORY);                               \
    rp_call_end(RP_CALL_ALLOC);                                                                              \
    return result;                                                                                           \
  }

/* What cannot be exported is left to the driver to refuse. */
#define EXPORT_IPC(name, type)                                                                               \
  RP_HOOK(int, name, (void *handle, type address)) {                                                         \
    int result = RP_ABI_SUCCESS;                                                                             \
    bool asks = begin() && handle;                                                                           \
    if (!asks && handle && !rp_enforce_on()) (void)may_get_away((uint64_t)(uintptr_t)address, 1);            \
    if (!asks || rp_enforce_export((uint64_t)(uintptr_t)address, handle) != RP_ENFORCE_EXPORTED)             \
      result = real_##name(handle, address);                                                                 \
    rp_call_end(RP_CALL_ALLOC);                                                                              \
    return result;                                                                                           \
  }

/* Handles of ours, that another process exported, and what they led to. Whatever this process does itself. */
static bool imports(void) {
  (void)rp_call_begin(RP_CALL_ALLOC);
  return rp_state_get() != RP_STATE_CHILD && rp_call_is_programs(RP_CALL_ALLOC);
}

#define IMPORT_IPC(name, type, runtime)                                                                      \
  RP_HOOK(int, name, (type * address, struct rp_abi_ipc_memory handle, unsigned flags)) {                    \
    int result;                                                                                              \
    uint64_t at = 0;                                                                                         \
    bool asks = imports() && address && rp_enforce_is_export(&handle);                                       \
    if (asks && (runtime)) rp_hook_make_context((void *)real_##name);                                        \
    if (!asks || !rp_enforce_import(&handle, &at, &result))                                                  \
      result = real_##name(address, handle, flags);                                                          \
    else if (result == RP_ABI_SUCCESS)                                                                       \
      *address = (type)(uintptr_t)at;                                                                        \
    rp_call_end(RP_CALL_ALLOC);                                                                              \
    return result;                                                                                           \
  }

#define IMPORT_END(name, type)                                                                               \
  RP_HOOK(int, name, (type address)) {                                                                       \
    int result;                                                                                              \
    if (!imports() || !rp_enforce_import_end((uint64_t)(uintptr_t)address, &result))                         \
      result = real_##name(address);                                                                         \
    rp_call_end(RP_CALL_ALLOC);                                                                              \
    return result;                                                                                           \
  }

typedef void *runtime_pointer;
typedef uint64_t driver_pointer;
EXPORT_IPC(cudaIpcGetMemHandle, runtime_pointer)
EXPORT_IPC(cuIpcGetMemHandle, driver_pointer)
IMPORT_IPC(cudaIpcOpenMemHandle, runtime_pointer, true)
IMPORT_IPC(cuIpcOpenMemHandle, driver_pointer, false)
IMPORT_IPC(cuIpcOpenMemHandle_v2, driver_pointer, false)
IMPORT_END(cudaIpcCloseMemHandle, runtime_pointer)
IMPORT_END(cuIpcCloseMemHandle, driver_pointer)
EXPORT(cuMemRetainAllocationHandle, (uint64_t * handle, void *address), (handle, address), address, 1)
EXPORT(cuMemGetHandleForAddressRange,
       (void *handle, uint64_t address, size_t bytes, int type, unsigned long long flags),
       (handle, address, bytes, type, flags), address, bytes)

const struct rp_hook rp_hooks_pointers[] = {
    RP_HOOK_ENTRY(cudaPointerGetAttributes),      RP_HOOK_ENTRY(cuPointerGetAttribute),
    RP_HOOK_ENTRY(cuPointerGetAttributes),        RP_HOOK_ENTRY(cuMemGetAddressRange_v2),
    RP_HOOK_ENTRY(cudaIpcGetMemHandle),           RP_HOOK_ENTRY(cuIpcGetMemHandle),
    RP_HOOK_ENTRY(cudaIpcOpenMemHandle),          RP_HOOK_ENTRY(cuIpcOpenMemHandle),
    RP_HOOK_ENTRY(cuIpcOpenMemHandle_v2),         RP_HOOK_ENTRY(cudaIpcCloseMemHandle),
    RP_HOOK_ENTRY(cuIpcCloseMemHandle),           RP_HOOK_ENTRY(cuMemRetainAllocationHandle),
    RP_HOOK_ENTRY(cuMemGetHandleForAddressRange),
};
const size_t rp_hooks_pointers_count = sizeof rp_hooks_pointers / sizeof rp_hooks_pointers[0];
