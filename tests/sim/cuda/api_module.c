/* Modules and libraries. Any image is accepted, and all registered kernels are in it; where it is a device
 * binary, so are its own. */
#include "api.h"
#include "image.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Gives a handle its device binary; a copy, unless the caller keeps it. False without memory. */
static bool keep_image(struct sim_handle *handle, const void *image, bool preserved) {
  size_t bytes = sim_image_bytes(image);
  if (!bytes) return true;
  handle->image = image;
  if (preserved) return true;
  handle->image = handle->image_copy = malloc(bytes);
  if (handle->image_copy) memcpy(handle->image_copy, image, bytes);
  return handle->image_copy != NULL;
}

/* ---- modules ---- */

static void module_callback(CUpti_CallbackIdResource id, struct sim_handle *module) {
  CUpti_ModuleResourceData data = {.moduleId = module->id};
  sim_resource_callback(id, module->context, NULL, &data);
}

static CUresult load_module(CUmodule *out, const void *image) {
  if (!out || !image) return CUDA_ERROR_INVALID_VALUE;
  struct sim_context *context = sim_context_current();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  struct sim_handle *module = sim_handle_create(SIM_MODULE, NULL, context, NULL);
  if (!module) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!keep_image(module, image, false)) {
    sim_handle_destroy(module);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  module_callback(CUPTI_CBID_RESOURCE_MODULE_LOADED, module);
  *out = (CUmodule)module;
  return CUDA_SUCCESS;
}

CUresult impl_cuModuleLoad(CUmodule *module, const char *fname) {
  if (!fname) return CUDA_ERROR_INVALID_VALUE;
  return access(fname, R_OK) != 0 ? CUDA_ERROR_FILE_NOT_FOUND : load_module(module, fname);
}

CUresult impl_cuModuleLoadData(CUmodule *module, const void *image) {
  return load_module(module, image);
}

CUresult impl_cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions,
                                 CUjit_option *options, void **optionValues) {
  if (numOptions > 0 && (!options || !optionValues)) return CUDA_ERROR_INVALID_VALUE;
  return load_module(module, image);
}

CUresult impl_cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin) {
  return load_module(module, fatCubin);
}

CUresult impl_cuModuleUnload(CUmodule hmod) {
  struct sim_handle *module = sim_handle_of(hmod, SIM_MODULE);
  if (!module || module->owner)
    return CUDA_ERROR_INVALID_HANDLE; /* a library's module goes with the library */
  module_callback(CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING, module);
  sim_handle_destroy(module);
  return CUDA_SUCCESS;
}

CUresult impl_cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) {
  if (!mode) return CUDA_ERROR_INVALID_VALUE;
  *mode = CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

CUresult impl_cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name) {
  if (!hfunc || !name) return CUDA_ERROR_INVALID_VALUE;
  struct sim_handle *module = sim_handle_of(hmod, SIM_MODULE);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  const void *image = module->owner ? module->owner->image : module->image;
  const struct sim_registered *named = sim_registered_get(name, image);
  if (!named) return CUDA_ERROR_NOT_FOUND;
  struct sim_handle *function = sim_handle_get(SIM_FUNCTION, module, module->context, named);
  if (!function) return CUDA_ERROR_OUT_OF_MEMORY;
  *hfunc = (CUfunction)function;
  return CUDA_SUCCESS;
}

CUresult impl_cuModuleGetFunctionCount(unsigned int *count, CUmodule mod) {
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  if (!sim_handle_of(mod, SIM_MODULE)) return CUDA_ERROR_INVALID_HANDLE;
  *count = (unsigned)sim_registered_list(NULL, 0);
  return CUDA_SUCCESS;
}

CUresult impl_cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule hmod, const char *name) {
  if (!name || (!dptr && !bytes)) return CUDA_ERROR_INVALID_VALUE;
  return sim_handle_of(hmod, SIM_MODULE) ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;
}

/* ---- libraries ---- */

static CUresult load_library(CUlibrary *out, const void *code, bool preserved) {
  if (!out || !code) return CUDA_ERROR_INVALID_VALUE;
  struct sim_handle *library = sim_handle_create(SIM_LIBRARY, NULL, NULL, NULL);
  if (!library) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!keep_image(library, code, preserved)) {
    sim_handle_destroy(library);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = (CUlibrary)library;
  return CUDA_SUCCESS;
}

CUresult impl_cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions,
                                void **jitOptionsValues, unsigned int numJitOptions,
                                CUlibraryOption *libraryOptions, void **libraryOptionValues,
                                unsigned int numLibraryOptions) {
  if ((numJitOptions > 0 && (!jitOptions || !jitOptionsValues)) ||
      (numLibraryOptions > 0 && (!libraryOptions || !libraryOptionValues)))
    return CUDA_ERROR_INVALID_VALUE;
  bool preserved = false;
  for (unsigned i = 0; i < numLibraryOptions; i++)
    if (libraryOptions[i] == CU_LIBRARY_BINARY_IS_PRESERVED) preserved = libraryOptionValues[i] != NULL;
  return load_library(library, code, preserved);
}

CUresult impl_cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions,
                                    void **jitOptionsValues, unsigned int numJitOptions,
                                    CUlibraryOption *libraryOptions, void **libraryOptionValues,
                                    unsigned int numLibraryOptions) {
  if (!fileName) return CUDA_ERROR_INVALID_VALUE;
  if (access(fileName, R_OK) != 0) return CUDA_ERROR_FILE_NOT_FOUND;
  return impl_cuLibraryLoadData(library, fileName, jitOptions, jitOptionsValues, numJitOptions,
                                libraryOptions, libraryOptionValues, numLibraryOptions);
}

CUresult impl_cuLibraryUnload(CUlibrary library) {
  struct sim_handle *handle = sim_handle_of(library, SIM_LIBRARY);
  if (!handle) return CUDA_ERROR_INVALID_HANDLE;
  sim_handle_destroy(handle);
  return CUDA_SUCCESS;
}

CUresult impl_cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name) {
  if (!pKernel || !name) return CUDA_ERROR_INVALID_VALUE;
  struct sim_handle *handle = sim_handle_of(library, SIM_LIBRARY);
  if (!handle) return CUDA_ERROR_INVALID_HANDLE;
  const struct sim_registered *named = sim_registered_get(name, handle->image);
  if (!named) return CUDA_ERROR_NOT_FOUND;
  struct sim_handle *kernel = sim_handle_get(SIM_KERNEL, handle, NULL, named);
  if (!kernel) return CUDA_ERROR_OUT_OF_MEMORY;
  *pKernel = (CUkernel)kernel;
  return CUDA_SUCCESS;
}

CUresult impl_cuLibraryGetKernelCount(unsigned int *count, CUlibrary lib) {
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  if (!sim_handle_of(lib, SIM_LIBRARY)) return CUDA_ERROR_INVALID_HANDLE;
  *count = (unsigned)sim_registered_list(NULL, 0);
  return CUDA_SUCCESS;
}

CUresult impl_cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int numKernels, CUlibrary lib) {
  struct sim_handle *library = sim_handle_of(lib, SIM_LIBRARY);
  if (!library) return CUDA_ERROR_INVALID_HANDLE;
  if (!kernels && numKernels > 0) return CUDA_ERROR_INVALID_VALUE;
  const struct sim_registered *named[256];
  size_t total = sim_registered_list(named, sizeof named / sizeof named[0]);
  for (size_t i = 0; i < total && i < numKernels && i < sizeof named / sizeof named[0]; i++) {
    struct sim_handle *kernel = sim_handle_get(SIM_KERNEL, library, NULL, named[i]);
    if (!kernel) return CUDA_ERROR_OUT_OF_MEMORY;
    kernels[i] = (CUkernel)kernel;
  }
  return CUDA_SUCCESS;
}

/* The module of a library in the current context. */
static CUresult library_module(struct sim_handle *library, struct sim_handle **module) {
  struct sim_context *context = sim_context_current();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  *module = sim_handle_get(SIM_MODULE, library, context, NULL);
  return *module ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult impl_cuLibraryGetModule(CUmodule *pMod, CUlibrary library) {
  if (!pMod) return CUDA_ERROR_INVALID_VALUE;
  struct sim_handle *handle = sim_handle_of(library, SIM_LIBRARY), *module = NULL;
  if (!handle) return CUDA_ERROR_INVALID_HANDLE;
  CUresult result = library_module(handle, &module);
  if (result == CUDA_SUCCESS) *pMod = (CUmodule)module;
  return result;
}

CUresult impl_cuLibraryGetGlobal(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name) {
  if (!name || (!dptr && !bytes)) return CUDA_ERROR_INVALID_VALUE;
  return sim_handle_of(library, SIM_LIBRARY) ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;
}

CUresult impl_cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel) {
  if (!pFunc) return CUDA_ERROR_INVALID_VALUE;
  struct sim_handle *handle = sim_handle_of(kernel, SIM_KERNEL), *module = NULL;
  if (!handle) return CUDA_ERROR_INVALID_HANDLE;
  CUresult result = library_module(handle->owner, &module);
  if (result != CUDA_SUCCESS) return result;
  struct sim_handle *function = sim_handle_get(SIM_FUNCTION, module, module->context, handle->named);
  if (!function) return CUDA_ERROR_OUT_OF_MEMORY;
  *pFunc = (CUfunction)function;
  return CUDA_SUCCESS;
}

CUresult impl_cuKernelGetLibrary(CUlibrary *pLib, CUkernel kernel) {
  struct sim_handle *handle = sim_handle_of(kernel, SIM_KERNEL);
  if (!handle) return CUDA_ERROR_INVALID_HANDLE;
  if (!pLib) return CUDA_ERROR_INVALID_VALUE;
  *pLib = (CUlibrary)handle->owner;
  return CUDA_SUCCESS;
}
