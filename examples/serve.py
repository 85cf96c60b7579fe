"""A small HTTP service around one exported graph: an image in; class, calibrated probability, conformal set and drift out.

    atta export classifier -o classifier.onnx --pixels uint8
    python examples/serve.py classifier.onnx
    curl --data-binary @photo.jpg -H 'Content-Type: image/jpeg' http://127.0.0.1:8000/predict
    curl http://127.0.0.1:8000/drift

ONNX Runtime does the work. The file itself says how photographs are resized and cropped, what the classes are called, and how
sure the network was of the validation images, which sets and drift are made of. It needs atta[serve,onnx]. It listens to this
machine alone: for others, put a proxy in front of it that knows who may ask.
"""

import sys

import uvicorn
from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from atta.classifier.predict import open_predictor
from atta.classifier.serve import SENTENCES, Explainer, sent


def service(path: str, coverage: float = 0.95) -> Starlette:
    """The service as an ASGI application; FastAPI mounts it as it is: app.mount("/classifier", service(path))."""
    explain = Explainer(open_predictor(path), coverage=coverage)
    at_once = CapacityLimiter(2)  # images in memory: a graph uses all cores by itself

    def answer(data: bytes) -> dict:
        said, drift = explain(data), explain.drift()
        return {
            "class": said["class"],
            "probability": said["confidence"],
            "set": said[
                "set"
            ],  # holds the true class as often as `coverage` says, the likeliest first
            "stranger": said[
                "ood"
            ],  # near 1, the network was surer of nearly all validation images
            "drifted": None
            if drift is None
            else drift.drifted,  # of the last 500 images, known from 32 on
        }

    async def predict(request: Request) -> JSONResponse:
        data = await sent(
            request, largest=10_000_000
        )  # what is no image, or too large, is answered in a sentence
        return JSONResponse(await to_thread.run_sync(answer, data, limiter=at_once))

    async def drift(request: Request) -> JSONResponse:
        found = explain.drift()
        return JSONResponse(None if found is None else found.json())

    routes = [Route("/predict", predict, methods=["POST"]), Route("/drift", drift)]
    return Starlette(routes=routes, exception_handlers=SENTENCES)


if __name__ == "__main__":
    uvicorn.run(service(sys.argv[1]), host="127.0.0.1", port=8000)
