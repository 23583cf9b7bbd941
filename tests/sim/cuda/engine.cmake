# Sources of the engine half of the simulated libcuda.so.1.
set(RPSIM_ENGINE_SOURCES
  engine_capture.c
  engine_context.c
  engine_copy.c
  engine_event.c
  engine_fault.c
  engine_launch.c
  engine_memory.c
  engine_memory_host.c
  engine_memory_info.c
  engine_memset.c
  engine_physical.c
  engine_pool.c
  engine_stream.c
  engine_stream_api.c
)
