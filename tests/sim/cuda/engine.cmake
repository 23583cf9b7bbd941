# Sources of the engine half of the simulated libcuda.so.1.
set(RPSIM_ENGINE_SOURCES
  engine_capture.c
  engine_context.c
  engine_copy.c
  engine_event.c
  engine_fault.c
  engine_graph.c
  engine_graph_exec.c
  engine_ipc.c
  engine_launch.c
  engine_log.c
  engine_memory.c
  engine_memory_host.c
  engine_memory_info.c
  engine_memset.c
  engine_physical.c
  engine_pool.c
  engine_stream.c
  engine_stream_api.c
  engine_vmm.c
)

# The engine by itself, with test_engine_host.c in the place of the api half.
add_library(rpsim_engine_test STATIC ${RPSIM_ENGINE_SOURCES} test_engine_host.c)
target_link_libraries(rpsim_engine_test PUBLIC recvpool_options recvpool_cuda_headers Threads::Threads cmocka)
foreach(part IN ITEMS graph memory pdl stream threads vmm)
  recvpool_unit_test(test_engine_${part} test_engine_${part}.c LIBS rpsim_engine_test)
endforeach()
