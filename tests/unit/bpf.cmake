# Unit tests of the half that observes from outside; no rights are needed.
if(TARGET recvpool_probes)
  recvpool_unit_test(test_bpf_sites test_bpf_sites.c LIBS recvpool_probes)
  recvpool_unit_test(test_bpf_process test_bpf_process.c LIBS recvpool_probes)
  recvpool_unit_test(test_bpf_target test_bpf_target.c LIBS recvpool_probes)
  target_compile_definitions(test_bpf_sites PRIVATE _GNU_SOURCE MOCK="$<TARGET_FILE:attach_mock>"
    MOCK_PAD="$<TARGET_FILE:attach_mock_pad>" NOP5="$<TARGET_FILE:attach_nop5>" IMPORTS="$<TARGET_FILE:attach_imports>")
  target_compile_definitions(test_bpf_process PRIVATE _GNU_SOURCE)
  add_dependencies(test_bpf_sites attach_mock attach_mock_pad attach_nop5 attach_imports)
endif()
recvpool_unit_test(test_answers test_answers.c LIBS recvpool_core)
