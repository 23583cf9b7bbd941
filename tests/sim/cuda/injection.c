/* A smallest tool for CUDA_INJECTION64_PATH: says so each time it is initialised. With TEST_CUPTI naming a
 * libcupti, it subscribes there and prints the callbacks of cuInit and of the resource domain. */
#include <cupti.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

__attribute__((visibility("default"))) int InitializeInjection(void);

static void callback(void *userdata, CUpti_CallbackDomain domain, CUpti_CallbackId cbid, const void *data) {
  (void)userdata;
  if (domain == CUPTI_CB_DOMAIN_RESOURCE) printf("resource %u\n", cbid);
  if (domain == CUPTI_CB_DOMAIN_DRIVER_API)
    printf("%s %d\n", ((const CUpti_CallbackData *)data)->functionName,
           ((const CUpti_CallbackData *)data)->callbackSite);
}

static void subscribe(const char *path) {
  static CUpti_SubscriberHandle subscriber;
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return;
  CUptiResult (*subscribe_call)(CUpti_SubscriberHandle *, CUpti_CallbackFunc, void *) =
      (CUptiResult(*)(CUpti_SubscriberHandle *, CUpti_CallbackFunc, void *))dlsym(library, "cuptiSubscribe");
  CUptiResult (*enable)(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain) =
      (CUptiResult(*)(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain))dlsym(library,
                                                                                    "cuptiEnableDomain");
  printf("subscribe %d\n", (int)subscribe_call(&subscriber, callback, NULL));
  enable(1, subscriber, CUPTI_CB_DOMAIN_RESOURCE);
  enable(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API);
}

int InitializeInjection(void) {
  puts("injected");
  const char *path = getenv("TEST_CUPTI");
  if (path) subscribe(path);
  fflush(stdout);
  return 0; /* the driver takes no notice */
}
