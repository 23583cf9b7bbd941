# Unit tests of the half that observes from outside; no rights are needed.
if(TARGET recvpool_probes)
  recvpool_unit_test(test_bpf_sites test_bpf_sites.c LIBS recvpool_probes)
  recvpool_unit_test(test_bpf_process test_bpf_process.c LIBS recvpool_probes)
  recvpool_unit_test(test_bpf_target test_bpf_target.c LIBS recvpool_probes)
  target_compile_definitions(test_bpf_sites PRIVATE _GNU_SOURCE MOCK="$<TARGET_FILE:attach_mock>"
    MOCK_PAD="$<TARGET_FILE:attach_mock_pad>" NOP5="$<TARGET_FILE:attach_nop5>" IMPORTS="$<TARGET_FILE:attach_imports>")
  target_compile_definitions(test_bpf_process PRIVATE _GNU_SOURCE)
  recvpool_unit_test(test_bpf_release test_bpf_release.c LIBS recvpool_probes)
  target_compile_definitions(test_bpf_release PRIVATE _GNU_SOURCE MOCK="$<TARGET_FILE:attach_mock>")
  target_link_libraries(test_bpf_release PRIVATE ${CMAKE_DL_LIBS})
  add_dependencies(test_bpf_release attach_mock)
  set_tests_properties(test_bpf_release PROPERTIES RESOURCE_LOCK probes SKIP_RETURN_CODE 77)
  # Over stand-ins for the probes: the rest of the half is left out.
  set(bpf ${PROJECT_SOURCE_DIR}/bpf)
  recvpool_unit_test(test_bpf_libraries test_bpf_libraries.c ${bpf}/libraries.c ${bpf}/detacher.c ${bpf}/mappings.c
    ${bpf}/sites.c ${bpf}/process.c ${bpf}/functions.c LIBS recvpool_core PkgConfig::LIBELF Threads::Threads)
  target_compile_definitions(test_bpf_libraries PRIVATE _GNU_SOURCE MOCK="$<TARGET_FILE:attach_mock>")
  add_dependencies(test_bpf_libraries attach_mock)
  add_dependencies(test_bpf_sites attach_mock attach_mock_pad attach_nop5 attach_imports)
endif()
recvpool_unit_test(test_answers test_answers.c LIBS recvpool_core)
