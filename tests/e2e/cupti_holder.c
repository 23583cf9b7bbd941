/* A program that subscribes to CUPTI before it uses CUDA, as a profiler in the process does, and prints how
 * many driver calls it saw. CUPTI is found as such programs find it, by dlopen. */
#include <cuda_runtime_api.h>
#include <cupti.h>
#include <dlfcn.h>
#include <stdio.h>

static int allocations;

static void CUPTIAPI on_call(void *user, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                             const void *data_pointer) {
  const CUpti_CallbackData *data = data_pointer;
  (void)user;
  if (domain == CUPTI_CB_DOMAIN_DRIVER_API && id == CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2 &&
      data->callbackSite == CUPTI_API_ENTER)
    allocations++;
}

int main(void) {
  void *library = dlopen("libcupti.so.13", RTLD_NOW | RTLD_LOCAL);
  CUptiResult (*subscribe)(CUpti_SubscriberHandle *, CUpti_CallbackFunc, void *) = NULL;
  CUptiResult (*enable)(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain, CUpti_CallbackId) = NULL;
  if (library) {
    *(void **)&subscribe = dlsym(library, "cuptiSubscribe");
    *(void **)&enable = dlsym(library, "cuptiEnableCallback");
  }
  CUpti_SubscriberHandle subscriber;
  if (!subscribe || !enable) return 3;
  printf("subscribe %d\n", (int)subscribe(&subscriber, on_call, NULL));
  printf("enable %d\n",
         (int)enable(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2));
  for (int i = 0; i < 3; i++) {
    void *memory;
    printf("cudaMalloc %d\n", (int)cudaMalloc(&memory, 1 << 20));
  }
  printf("saw %d allocations\n", allocations);
  return 0;
}
