# cmake -DBUILD=build-dir -DCONSUMER=source-dir -DWORK=scratch-dir -DTORCH=ON|OFF -DCXX=compiler -P install_test.cmake
function(must)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE _rc OUTPUT_VARIABLE _out ERROR_VARIABLE _out)
  if(NOT _rc EQUAL 0)
    message(FATAL_ERROR "failed (${_rc}): ${ARGN}\n${_out}")
  endif()
endfunction()

set(_prefix "${WORK}/prefix")
file(REMOVE_RECURSE "${_prefix}" "${WORK}/consumer-build")
must(${CMAKE_COMMAND} --install "${BUILD}" --prefix "${_prefix}" --strip)
must(${CMAKE_COMMAND} -G Ninja -S "${CONSUMER}" -B "${WORK}/consumer-build" "-DCMAKE_PREFIX_PATH=${_prefix}" "-DCMAKE_CXX_COMPILER=${CXX}"
     "-DCONSUMER_WITH_TORCH=${TORCH}")
must(${CMAKE_COMMAND} --build "${WORK}/consumer-build")
must("${WORK}/consumer-build/consumer")
if(TORCH)
  must("${WORK}/consumer-build/torch_consumer")
  must("${_prefix}/bin/niche" --help)
endif()
