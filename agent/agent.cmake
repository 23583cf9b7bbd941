# librecvpool.so: what the driver loads by CUDA_INJECTION64_PATH. recvpool_agent_objects is the same code with its
# internals visible, for tests.
add_library(recvpool_agent_objects STATIC agent.c agent_channels.c agent_work.c descriptors.c enforce.c enforce_ask.c
  enforce_backend.c enforce_calls.c enforce_context.c enforce_export.c enforce_gate.c enforce_idle.c enforce_memory.c enforce_milestones.c enforce_report.c
  enforce_transfers.c evidence.c hooks.c hooks_collectives.c hooks_context.c hooks_copies.c hooks_entry.c hooks_graphs.c hooks_memory.c hooks_nccl.c
  hooks_order.c hooks_pointers.c hooks_shapes.c hooks_work.c identity.c interpose.c log.c names.c nccl_profiler.c ordering.c posts.c range_filter.c reporter.c requests.c state.c unstoppable.c work.c)
target_compile_definitions(recvpool_agent_objects PRIVATE _GNU_SOURCE)
target_link_libraries(recvpool_agent_objects PUBLIC recvpool_agent_common recvpool_cuda Threads::Threads
  ${CMAKE_DL_LIBS} PRIVATE recvpool_options)

# The library lives in other people's processes, which may hold another jansson or none: it brings its own, unseen.
find_library(RECVPOOL_JANSSON_STATIC NAMES libjansson.a HINTS ${JANSSON_LIBRARY_DIRS} ${JANSSON_LIBDIR})
if(RECVPOOL_JANSSON_STATIC)
  set(recvpool_agent_jansson ${RECVPOOL_JANSSON_STATIC})
else()
  set(recvpool_agent_jansson PkgConfig::JANSSON)
endif()

add_library(recvpool_agent SHARED inject.c $<$<BOOL:${RECVPOOL_JANSSON_STATIC}>:jansson_static.c>)
target_compile_definitions(recvpool_agent PRIVATE _GNU_SOURCE)
target_include_directories(recvpool_agent PRIVATE ${JANSSON_INCLUDE_DIRS})
set_target_properties(recvpool_agent PROPERTIES OUTPUT_NAME recvpool
  LINK_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/librecvpool.map)
# By file, so that the archives' own (shared) jansson does not come along.
add_dependencies(recvpool_agent recvpool_agent_objects recvpool_agent_common recvpool_cuda recvpool_core)
target_link_libraries(recvpool_agent PRIVATE recvpool_options
  -Wl,--whole-archive $<TARGET_FILE:recvpool_agent_objects> -Wl,--no-whole-archive
  $<TARGET_FILE:recvpool_agent_common> $<TARGET_FILE:recvpool_cuda> $<TARGET_FILE:recvpool_core>
  ${recvpool_agent_jansson} Threads::Threads ${CMAKE_DL_LIBS})
set_property(TARGET recvpool_agent APPEND PROPERTY LINK_DEPENDS
  "$<TARGET_FILE:recvpool_agent_objects>;$<TARGET_FILE:recvpool_agent_common>;$<TARGET_FILE:recvpool_cuda>;$<TARGET_FILE:recvpool_core>")
target_link_options(recvpool_agent PRIVATE -Wl,-z,nodelete -Wl,-z,now -Wl,-z,relro
  -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/librecvpool.map)
if(RECVPOOL_SANITIZE STREQUAL "")
  target_link_options(recvpool_agent PRIVATE -Wl,-z,defs) # sanitizers leave their symbols to the program
endif()
install(TARGETS recvpool_agent LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
