/* A module with device code, as nvcc makes them: with REGISTERS for a runtime that is shared, else as one
 * that holds a runtime of its own. */
__attribute__((section(".nv_fatbin"), used)) const unsigned rp_device_code = 0xba55ed50;

#ifdef REGISTERS
void **__cudaRegisterFatBinary(void *binary);
void **rp_device_code_register(void);
int cuLaunchKernel(void);
const char *rp_device_code_launch(void *handle);
void *dlsym(void *handle, const char *name);

/* It looks functions up and says the name of one that it imports, as programs do that check what calls
 * return. */
const char *rp_device_code_launch(void *handle) {
  return dlsym(handle, "rp_device_code") && cuLaunchKernel() ? "cuLaunchKernel" : "";
}

void **rp_device_code_register(void) {
  return __cudaRegisterFatBinary((void *)(unsigned long)&rp_device_code);
}
#endif
