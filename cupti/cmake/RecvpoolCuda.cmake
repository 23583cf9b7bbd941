# Finds the CUDA, CUPTI and NCCL headers. No library of CUDA is needed to build: all are found at run time.
#
# Searched, in this order: RECVPOOL_CUDA_ROOT if given, CUDA_HOME, /usr/local/cuda, then the nvidia-* wheels in
# <build>/cuda-wheels (tests/run.sh installs them there) and in the site-packages of the active Python.
# The CUDA headers proper must come from one place; NCCL, NVTX and CCCL are often installed elsewhere and are looked for
# alone.
#
# Gives the INTERFACE target recvpool_cuda_headers, and sets RECVPOOL_CUDA_ROOT to the folder the CUDA headers are under
# (a toolkit, or a wheel folder, which has include/ and lib/ but rarely bin/).
set(RECVPOOL_CUDA_ROOT "" CACHE PATH "Folder with include/cuda.h; empty: CUDA_HOME, /usr/local/cuda, nvidia-* wheels")
option(RECVPOOL_IGNORE_TOOLKIT "Look for the CUDA headers in Python wheels only" OFF)
set(RECVPOOL_CUDA_WHEELS ${CMAKE_BINARY_DIR}/cuda-wheels)

# Site-packages folders: ours first, then those of the active Python.
function(recvpool_python_sites out)
  set(sites ${RECVPOOL_CUDA_WHEELS})
  find_program(RECVPOOL_PYTHON NAMES python3 python DOC "Python whose nvidia-* wheels may be used")
  if(RECVPOOL_PYTHON)
    execute_process(
      COMMAND ${RECVPOOL_PYTHON} -c "import site, sys; print(';'.join(p for p in sys.path if p.endswith('-packages')))"
      OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
    if(status EQUAL 0)
      list(APPEND sites ${found})
    endif()
  endif()
  set(${out} ${sites} PARENT_SCOPE)
endfunction()

# recvpool_find_in(OUT header folder...): first folder that holds the header, or "".
function(recvpool_find_in out header)
  set(${out} "" PARENT_SCOPE)
  foreach(folder IN LISTS ARGN)
    if(EXISTS ${folder}/${header})
      set(${out} ${folder} PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# recvpool_try_root(root folder...): takes the folders if every CUDA header is in one of them. Sets `found_root` and
# `found_folders` in the caller, or appends to `missing_notes` what a half-filled place lacks.
macro(recvpool_try_root root)
  if(NOT found_root)
    set(try_folders "")
    set(try_missing "")
    foreach(header IN ITEMS cuda.h cuda_runtime_api.h crt/host_defines.h cupti.h generated_cuda_meta.h)
      recvpool_find_in(try_folder ${header} ${ARGN})
      if(try_folder)
        list(APPEND try_folders ${try_folder})
      else()
        string(APPEND try_missing " ${header}")
      endif()
    endforeach()
    if(NOT try_missing)
      set(found_root ${root})
      list(REMOVE_DUPLICATES try_folders)
      set(found_folders ${try_folders})
    elseif(try_folders)
      string(APPEND missing_notes "\n  ${root} lacks${try_missing}")
    endif()
  endif()
endmacro()

macro(recvpool_try_toolkit root)
  recvpool_try_root(${root} ${root}/include ${root}/extras/CUPTI/include
    ${root}/targets/${CMAKE_SYSTEM_PROCESSOR}-linux/include)
endmacro()

set(found_root "")
set(found_folders "")
set(missing_notes "")
recvpool_python_sites(sites)
if(RECVPOOL_CUDA_ROOT)
  recvpool_try_toolkit(${RECVPOOL_CUDA_ROOT})
elseif(NOT RECVPOOL_IGNORE_TOOLKIT)
  foreach(root IN ITEMS $ENV{CUDA_HOME} /usr/local/cuda)
    recvpool_try_toolkit(${root})
  endforeach()
endif()
set(other_folders "")
foreach(site IN LISTS sites)
  if(NOT RECVPOOL_CUDA_ROOT)
    recvpool_try_root(${site}/nvidia/cu13 ${site}/nvidia/cu13/include) # wheels since CUDA 13
    recvpool_try_root(${site}/nvidia/cuda_runtime ${site}/nvidia/cuda_runtime/include
      ${site}/nvidia/cuda_cupti/include ${site}/nvidia/cuda_nvcc/include) # one folder a wheel, before
  endif()
  list(APPEND other_folders ${site}/nvidia/cu13/include ${site}/nvidia/cu13/include/cccl
    ${site}/nvidia/cuda_cccl/include ${site}/nvidia/cuda_profiler_api/include ${site}/nvidia/nccl/include
    ${site}/nvidia/nvtx/include)
endforeach()
# nccl.h includes cuda_fp16.h, which includes nv/target of CCCL. The simulated device includes cudaProfiler.h.
set(cccl_folders ${found_folders})
list(TRANSFORM cccl_folders APPEND /cccl)
foreach(header IN ITEMS nccl.h nvtx3/nvToolsExt.h nv/target cudaProfiler.h)
  recvpool_find_in(folder ${header} ${found_folders} ${cccl_folders} ${other_folders} /usr/include /usr/local/include)
  if(folder)
    list(APPEND found_folders ${folder})
  elseif(found_root)
    string(APPEND missing_notes "\n  no ${header} in ${found_root}, in a wheel or in /usr/include")
    set(found_root "")
  endif()
endforeach()

if(NOT found_root)
  message(FATAL_ERROR "recvpool needs the headers of CUDA 12 or 13, CUPTI, NCCL and NVTX (no GPU, no driver, no library)."
    "${missing_notes}\nInstall a CUDA toolkit and name it by CUDA_HOME or -DRECVPOOL_CUDA_ROOT=DIR, or install wheels:\n"
    "  python3 -m pip install --no-deps --target '${RECVPOOL_CUDA_WHEELS}' "
    "'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-crt==13.0.*' 'nvidia-cuda-cccl==13.0.*' "
    "'nvidia-cuda-profiler-api==13.0.*' 'nvidia-cuda-cupti==13.0.*' 'nvidia-nvtx==13.0.*' "
    "'nvidia-nccl-cu13==2.28.*'\n"
    "tests/run.sh and tests/demo.sh do the latter by themselves.")
endif()
list(REMOVE_DUPLICATES found_folders)
set(RECVPOOL_CUDA_ROOT ${found_root}) # for this run only: the cache keeps what the user asked for
message(STATUS "CUDA headers: ${found_folders}")

add_library(recvpool_cuda_headers INTERFACE)
# /usr/include must not be named, or C++ loses its own headers.
list(REMOVE_ITEM found_folders /usr/include /usr/local/include)
target_include_directories(recvpool_cuda_headers SYSTEM INTERFACE ${found_folders})
