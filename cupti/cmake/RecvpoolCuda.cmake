# Finds the CUDA, CUPTI and NCCL headers: CUDA_HOME, /usr/local/cuda, or the nvidia-* wheels of a Python environment.
# Gives the INTERFACE target recvpool_cuda_headers and RECVPOOL_CUDA_ROOT.
set(RECVPOOL_CUDA_ROOT "" CACHE PATH "Folder with include/cuda.h; empty = CUDA_HOME, then /usr/local/cuda")
if(NOT RECVPOOL_CUDA_ROOT)
  foreach(candidate IN ITEMS $ENV{CUDA_HOME} /usr/local/cuda)
    if(EXISTS ${candidate}/include/cuda.h)
      set(RECVPOOL_CUDA_ROOT ${candidate})
      break()
    endif()
  endforeach()
endif()
add_library(recvpool_cuda_headers INTERFACE)
target_include_directories(recvpool_cuda_headers SYSTEM INTERFACE ${RECVPOOL_CUDA_ROOT}/include)
