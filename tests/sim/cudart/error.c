/* Owns the names and texts of errors. These two calls need nothing and never fail. */
#include "runtime.h"

static const struct {
  cudaError_t error;
  const char *name, *text;
} errors[] = {
#define RT_ERROR(name, text) {name, #name, text},
#include "error.def"
#undef RT_ERROR
};

RT_EXPORT const char *cudaGetErrorName(cudaError_t error) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].error == error) return errors[i].name;
  return "unrecognized error code";
}

RT_EXPORT const char *cudaGetErrorString(cudaError_t error) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].error == error) return errors[i].text;
  return "unrecognized error code";
}
